"""What there is of each GPU and what claims consume of it, from slices and claims alone. Pure.

The words are those of KEP-5677 (`ResourcePoolStatusRequest`): total, consumed, available. As there, what is consumed is what the
scheduler has given to claims, used or not, and admin access consumes nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.kubectl import taints
from hami_kubeletplugin.kubectl.capacity import Amount, Amounts, Capacity, amount, capacities
from hami_kubeletplugin.kubectl.pools import Pool, pools
from hami_kubeletplugin.kubectl.taints import Rule, Taint

Json = Mapping[str, Any]


@dataclass(slots=True)
class Gpu:
    """One device.

    Attributes:
        pool: The pool that it is in.
        name: The device's.
        device: As it is published.
        capacity: What it has.
        taints: All, of whatever effect.
        consumed: What claims have of it.
        claims: Their namespaces and names; one that has two shares is there twice.
    """

    pool: Pool
    name: str
    device: Json
    capacity: Mapping[str, Capacity]
    taints: tuple[Taint, ...]
    consumed: dict[str, Amount] = field(default_factory=lambda: defaultdict(int))
    claims: list[tuple[str, str]] = field(default_factory=list)

    @property
    def uuid(self) -> str:
        """Empty: not said."""
        return self.text(names.UUID)

    @property
    def shareable(self) -> bool:
        """Whether several claims may have it."""
        return self.device.get("allowMultipleAllocations") is True

    def text(self, attribute: str) -> str:
        """An attribute that is a text; empty: not said."""
        value = fields.at(self.device, "attributes", attribute, "string")
        return value if isinstance(value, str) else ""

    def available(self, name: str) -> Amount:
        """What is left of a capacity, never less than nothing."""
        return max(self.capacity[name].total - self.consumed.get(name, 0), 0)


@dataclass(slots=True)
class Tenant:
    """What a namespace's claims have.

    Attributes:
        claims: How many have something.
        devices: On how many GPUs.
        consumed: Of each capacity.
    """

    claims: int
    devices: int
    consumed: Amounts


@dataclass(slots=True)
class Inventory:
    """The cluster.

    Attributes:
        driver: Of which driver.
        pools: By node and name, with their GPUs.
        tenants: By namespace.
        lost: (pool, device) that claims have and nobody publishes now, with these claims.
    """

    driver: str
    pools: list[tuple[Pool, list[Gpu]]]
    tenants: dict[str, Tenant]
    lost: dict[tuple[str, str], list[tuple[str, str]]]

    @property
    def gpus(self) -> list[Gpu]:
        """All GPUs."""
        return [gpu for _, gpus in self.pools for gpu in gpus]


def inventory(slices: Iterable[Json], claims: Iterable[Json], driver: str, rules: Sequence[Rule] = ()) -> Inventory:
    """Put it together.

    Args:
        slices: ResourceSlices; others' are passed over.
        claims: ResourceClaims of all namespaces.
        driver: The driver's name.
        rules: DeviceTaintRules.
    """
    rules = [rule for rule in rules if rule.driver in (None, driver)]
    made = [(pool, [_gpu(pool, device, rules) for device in pool.devices]) for pool in pools(slices, driver)]
    known = {(pool.name, gpu.name): gpu for pool, gpus in made for gpu in gpus}
    named: dict[str, set[str]] = defaultdict(set)
    devices: dict[str, set[tuple[str, str]]] = defaultdict(set)
    consumed: dict[str, dict[str, Amount]] = defaultdict(lambda: defaultdict(int))
    lost: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for claim in claims:
        namespace, name = (str(fields.at(claim, "metadata", part) or "") for part in ("namespace", "name"))
        for pool_name, device, amounts in shares(claim, driver):
            gpu, taken = known.get((pool_name, device)), amounts
            if gpu is None:
                lost[pool_name, device].append((namespace, name))
            else:
                taken = amounts if gpu.shareable else {each: has.total for each, has in gpu.capacity.items()}
                gpu.claims.append((namespace, name))
                for each, value in taken.items():
                    gpu.consumed[each] += value
            named[namespace].add(name)
            devices[namespace].add((pool_name, device))
            for each, value in taken.items():
                consumed[namespace][each] += value
    tenants = {each: Tenant(len(named[each]), len(devices[each]), consumed[each]) for each in sorted(named)}
    return Inventory(driver, made, tenants, dict(lost))


def shares(claim: Json, driver: str) -> list[tuple[str, str, Amounts]]:
    """What a claim has of a driver's devices: pool, device and amounts. Admin access is none of it."""
    found: list[tuple[str, str, Amounts]] = []
    for _, result in fields.mappings(fields.at(claim, "status", "allocation", "devices", "results")):
        if result.get("driver") == driver and result.get("adminAccess") is not True:
            given = fields.mapping(result.get("consumedCapacity"))
            taken = {str(name): value for name, text in given.items() if (value := amount(text)) is not None}
            found.append((str(result.get("pool") or ""), str(result.get("device") or ""), taken))
    return found


def _gpu(pool: Pool, device: Json, rules: Sequence[Rule]) -> Gpu:
    found = taints.of(device, pool.driver, pool.name, rules)
    return Gpu(pool, str(device.get("name") or ""), device, capacities(device), found)
