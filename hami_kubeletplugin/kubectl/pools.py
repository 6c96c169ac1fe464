"""ResourceSlices -> pools, as the scheduler puts them together. Pure.

Contract: k8s.io/dynamic-resource-allocation structured/internal/incubating/pools_incubating.go (1.37.2).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.kubectl.printable import printable

Json = Mapping[str, Any]


@dataclass
class Pool:
    """One pool: of a node, as our daemons publish them. Not to be changed once somebody has asked for its devices.

    Attributes:
        driver: Who publishes it.
        name: Its name.
        node: The node that has its devices; empty: it doesn't say.
        generation: The newest.
        expected: How many slices that generation has.
        slices: Those of it that are there, in the order in which the scheduler looks at them.
    """

    driver: str
    name: str
    generation: int
    expected: int
    node: str = ""
    slices: list[Json] = field(default_factory=list)

    @cached_property
    def devices(self) -> list[Json]:
        """Their devices, in the scheduler's order: it takes the first that fits."""
        return [device for slice_ in self.slices for _, device in fields.mappings(fields.at(slice_, "spec", "devices"))]

    @cached_property
    def trouble(self) -> str:
        """Why the scheduler gives out nothing of it; empty if it does."""
        if len(self.slices) != self.expected:
            return f"pool is incomplete: {len(self.slices)} of {self.expected} slices of generation {self.generation}"
        called = [str(device.get("name")) for device in self.devices]
        twice = (
            next((name for name in called if called.count(name) > 1), None) if len(set(called)) < len(called) else None
        )
        return f"pool is invalid: two devices are called {printable(twice, 80)}" if twice else ""


def pools(slices: Iterable[Json], driver: str) -> list[Pool]:
    """The pools of a driver, by node and name; slices of older generations are gone."""
    found: dict[str, Pool] = {}
    for slice_ in slices:
        spec = fields.mapping(slice_.get("spec"))
        about = fields.mapping(spec.get("pool"))
        if spec.get("driver") != driver:
            continue
        name, generation = str(about.get("name") or ""), _number(about.get("generation"))
        pool = found.get(name)
        if pool is None or pool.generation < generation:
            pool = found[name] = Pool(driver, name, generation, _number(about.get("resourceSliceCount")))
        if generation == pool.generation:
            pool.slices.append(slice_)
            pool.node = pool.node or str(spec.get("nodeName") or "")
    for pool in found.values():
        pool.slices.sort(key=lambda slice_: str(fields.at(slice_, "metadata", "name") or ""))
    return sorted(found.values(), key=lambda pool: (pool.node, pool.name))


def _number(given: object) -> int:
    return given if isinstance(given, int) and not isinstance(given, bool) else 0
