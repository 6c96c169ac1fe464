"""A fake of the scheduler: gives a claim's requests room on the first device that has it.

Just enough of the allocator's rules (KEP-5075, calculateConsumedCapacity) for the demo: missing amounts take the policy's
default, ranges and valid values are kept, shares of one device add up to at most its capacity.
"""

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from typing import Any

from hami_kubeletplugin.kube import quantity

Json = Mapping[str, Any]


class FakeScheduler:
    """Remembers what is taken on each device.

    Args:
        slices: The published ResourceSlices.
    """

    def __init__(self, slices: Iterable[Json]) -> None:
        self._devices = [
            (s["spec"]["pool"]["name"], s["spec"]["driver"], d) for s in slices for d in s["spec"]["devices"]
        ]
        self._taken: dict[tuple[str, str], Fraction] = defaultdict(Fraction)

    def allocate(self, claim: Json, pod: Json) -> Json:
        """The claim with an allocation on the first devices that fit, reserved for a pod.

        Raises:
            LookupError: No device has room.
        """
        results: list[Json] = []
        for request in claim["spec"]["devices"]["requests"]:
            given: list[str] = []
            for _ in range(request["exactly"].get("count", 1)):
                results.append(self._place(request["name"], request["exactly"]["capacity"]["requests"], given))
                given.append(results[-1]["device"])
        config = [{"source": "FromClaim", **entry} for entry in claim["spec"]["devices"].get("config", [])]
        reserved = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        status = {"allocation": {"devices": {"results": results, "config": config}}, "reservedFor": [reserved]}
        return {**claim, "status": status}

    def _place(self, request: str, wanted: Mapping[str, str], given: Collection[str]) -> Json:
        for pool, driver, device in self._devices:
            if device["name"] in given:
                continue
            amounts = {name: _amount(capacity, wanted.get(name)) for name, capacity in device["capacity"].items()}
            if all(
                self._taken[device["name"], name] + amount <= quantity.parse(device["capacity"][name]["value"])
                for name, amount in amounts.items()
            ):
                for name, amount in amounts.items():
                    self._taken[device["name"], name] += amount
                return {
                    "request": request,
                    "driver": driver,
                    "pool": pool,
                    "device": device["name"],
                    "shareID": str(uuid.uuid4()),
                    "consumedCapacity": {name: str(amount) for name, amount in amounts.items()},
                }
        raise LookupError(f"no device has room for request {request!r}")


def _amount(capacity: Json, wanted: str | None) -> Fraction:
    policy = capacity["requestPolicy"]
    amount = quantity.parse(wanted if wanted is not None else policy["default"])
    if "validValues" in policy:
        return min(value for value in map(quantity.parse, policy["validValues"]) if value >= amount)
    return max(amount, quantity.parse(policy["validRange"]["min"]))
