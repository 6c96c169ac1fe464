"""publish.slices: splitting devices, and the writes that repair a pool."""

import copy
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.fake.api_slices import check_slice
from hami_kubeletplugin.publish.slices import DEVICES_PER_SLICE, Pool, Write, differences, reconcile, split

POOL = Pool("gpu.hami.io", "n1", "node-uid")


def device(name: str, memory: str = "40Gi") -> dict[str, Any]:
    """A small device."""
    policy = {"default": memory, "validRange": {"min": "1Mi", "step": "1Mi"}}
    return {
        "name": name,
        "attributes": {"minor": {"int": 0}},
        "capacity": {"memory": {"value": memory, "requestPolicy": policy}},
        "allowMultipleAllocations": True,
    }


A, B, C = device("a"), device("b"), device("c")


class Server:
    """Slices by name, and what writes do to them."""

    def __init__(self, slices: Iterable[dict[str, Any]] = ()) -> None:
        self.slices = {s["metadata"]["name"]: s for s in slices}

    def apply(self, desired: list[list[dict[str, Any]]]) -> list[Write]:
        """Reconcile once; returns the writes."""
        writes = reconcile(POOL, desired, self.slices.values())
        for write in writes:
            obj = copy.deepcopy(write.slice)
            if write.verb == "delete":
                del self.slices[obj["metadata"]["name"]]
                continue
            if write.verb == "create":
                obj["metadata"]["name"] = obj["metadata"].pop("generateName") + uuid.uuid4().hex[:5]
                assert obj["metadata"]["name"] not in self.slices
                check_slice(obj, None)
            else:
                check_slice(obj, self.slices[obj["metadata"]["name"]])
            self.slices[obj["metadata"]["name"]] = obj
        return writes

    def devices(self) -> list[list[dict[str, Any]]]:
        """Devices per slice, in the order in which the scheduler reads them."""
        return [self.slices[name]["spec"].get("devices", []) for name in sorted(self.slices)]

    def one(self, index: int) -> dict[str, Any]:
        """The slice of that place in the order of names."""
        return self.slices[sorted(self.slices)[index]]

    @property
    def generations(self) -> set[int]:
        """All generations."""
        return {s["spec"]["pool"]["generation"] for s in self.slices.values()}


def verbs(writes: list[Write]) -> list[str]:
    """What was done."""
    return [write.verb for write in writes]


def test_split_at_the_apis_limits() -> None:
    """64 devices fit a slice that may have taints, 128 another; no devices are one empty slice, so that the pool is known."""
    plain = [device(str(n)) for n in range(129)]
    assert [len(part) for part in split(plain)] == [64, 64, 1]
    assert [len(part) for part in split(plain, DEVICES_PER_SLICE)] == [128, 1]
    assert split([]) == [[]]
    assert [d for part in split(plain) for d in part] == plain


def test_new_pool() -> None:
    """A new pool starts at generation 1, names carry the index, and the node owns the slices."""
    server = Server()
    assert verbs(server.apply([[A], [B]])) == ["create", "create"]
    assert [name[:-5] for name in sorted(server.slices)] == ["00000-gpu.hami.io-n1-", "00001-gpu.hami.io-n1-"]
    assert server.one(0)["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid", "controller": True}
    ]
    assert server.one(1)["spec"] == {
        "driver": "gpu.hami.io",
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 2},
        "devices": [B],
    }


def test_one_changed_slice_is_updated_in_place() -> None:
    """One change is one write: the slice is updated and the pool keeps its generation."""
    server = Server()
    server.apply([[A], [B]])
    assert verbs(server.apply([[A], [C]])) == ["update"]
    assert (server.devices(), server.generations) == ([[A], [C]], {1})


def test_several_changed_slices_take_a_new_generation() -> None:
    """When a device moves between slices all get the next generation, so that it is never seen twice or not at all."""
    server = Server()
    server.apply([[A], [B], [C]])
    assert verbs(server.apply([[B], [A], [C]])) == ["update"] * 3
    assert (server.devices(), server.generations) == ([[B], [A], [C]], {2})


def test_growing_and_shrinking() -> None:
    """A pool that grows takes a new generation; one that shrinks to a single slice keeps it."""
    server = Server()
    server.apply([[A]])
    assert verbs(server.apply([[A], [B]])) == ["update", "create"]
    assert server.generations == {2}
    assert verbs(server.apply([[A]])) == ["delete", "update"]
    assert (server.devices(), server.generations) == ([[A]], {2})
    assert verbs(server.apply([])) == ["delete"]


def test_deleted_slice_comes_back() -> None:
    """A slice that somebody deleted is created again, under a new generation of the pool."""
    server = Server()
    server.apply([[A], [B]])
    del server.slices[min(server.slices)]
    assert verbs(server.apply([[A], [B]])) == ["update", "create"]
    assert (server.devices(), server.generations) == ([[A], [B]], {2})


def test_edits_are_undone() -> None:
    """Edits of devices, pool and owner are found and undone with one write."""
    edits: tuple[Callable[[dict[str, Any]], object], ...] = (
        lambda s: s["spec"]["devices"][0]["capacity"]["memory"].update(value="80Gi"),
        lambda s: s["spec"]["devices"].append(B),
        lambda s: s["spec"]["pool"].update(resourceSliceCount=2),
        lambda s: s["metadata"].pop("ownerReferences"),
        lambda s: s["metadata"].update(
            ownerReferences=[{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "old"}]
        ),
    )
    for edit in edits:
        server = Server()
        server.apply([[A]])
        right = copy.deepcopy(server.one(0))
        edit(server.one(0))
        assert verbs(server.apply([[A]])) == ["update"]
        assert server.one(0) == right


def test_foreign_generation_wins_the_next() -> None:
    """If somebody raised a slice's generation, the whole pool goes above it."""
    server = Server()
    server.apply([[A], [B]])
    server.one(1)["spec"]["pool"]["generation"] = 7
    assert verbs(server.apply([[A], [B]])) == ["delete", "update", "create"]
    assert (server.devices(), server.generations) == ([[A], [B]], {8})


def test_same_meaning_is_no_change() -> None:
    """What the API server adds or writes in another way is not taken for a change."""
    server = Server()
    server.apply([[device("a", memory="40960Mi")], []])
    first = server.one(0)
    first["spec"]["devices"][0] = A
    first["metadata"] |= {"managedFields": [], "resourceVersion": "17", "creationTimestamp": "now"}
    del server.one(1)["spec"]["devices"]
    assert server.apply([[device("a", memory="40960Mi")], []]) == []


def test_slices_of_an_old_version_or_another_pool_go() -> None:
    """Slices of our driver on our node whose name has no index, or whose pool is another, are replaced."""
    server = Server()
    server.apply([[A]])
    unnamed, other = copy.deepcopy(server.one(0)), copy.deepcopy(server.one(0))
    unnamed["metadata"]["name"] = "n1-gpu.hami.io-abcde"
    other["metadata"]["name"], other["spec"]["pool"] = (
        "00000-x",
        {"name": "old", "generation": 9, "resourceSliceCount": 1},
    )
    server = Server([unnamed, other])
    assert verbs(server.apply([[A]])) == ["delete", "delete", "create"]
    assert (server.devices(), server.generations) == ([[A]], {2})


def test_right_one_of_duplicates_stays() -> None:
    """Of two slices for one index the one that needs no write stays, whatever their names are."""
    server = Server()
    server.apply([[A]])
    right = server.one(0)
    wrong = copy.deepcopy(right)
    wrong["metadata"]["name"], wrong["spec"]["devices"] = "00000-aaa", [B]
    server = Server([right, wrong])
    assert verbs(server.apply([[A]])) == ["delete"]
    assert server.one(0) is right


slices = st.builds(
    lambda index, suffix, pool, generation, count, devices, owner: {
        "metadata": {
            "name": f"{index}-gpu.hami.io-n1-{suffix}",
            "uid": f"{index}{suffix}",
            "ownerReferences": Pool(POOL.driver, POOL.node, owner).owner_references,
        },
        "spec": {
            "driver": POOL.driver,
            "nodeName": POOL.node,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
            "devices": devices,
        },
    },
    st.sampled_from(["00000", "00001", "00002", "00003", "0000a", "000000", "n1", ""]),
    st.sampled_from("xyz"),
    st.sampled_from(["n1", "n1", "n1", "other"]),
    st.integers(0, 3),
    st.integers(1, 4),
    st.lists(st.sampled_from([A, B, C, device("a", "1Gi")]), max_size=2, unique_by=lambda d: d["name"]),
    st.sampled_from([POOL.owner, POOL.owner, "gone"]),
)
observed_states = st.lists(slices, max_size=6, unique_by=lambda s: s["metadata"]["name"])
desired_states = st.sampled_from([[], [[]], [[A]], [[A, B]], [[A], [B]], [[B], [A]], [[A], [B], [C]]])


@given(observed_states, desired_states)
def test_any_state_converges_in_one_pass(observed: list[dict[str, Any]], desired: list[list[dict[str, Any]]]) -> None:
    """From whatever is there, one pass makes the pool right, with few writes, and a second pass writes nothing."""
    server = Server(copy.deepcopy(observed))
    seen = max((s["spec"]["pool"]["generation"] for s in observed if s["spec"]["pool"]["name"] == "n1"), default=0)
    writes = server.apply(desired)
    assert verbs(writes) == sorted(verbs(writes), key=["delete", "update", "create"].index)
    assert len(writes) <= len(observed) + len(desired)
    assert server.devices() == desired
    assert len(server.generations) == min(len(desired), 1)
    for slice_ in server.slices.values():
        assert slice_["spec"]["pool"]["resourceSliceCount"] == len(desired)
        assert slice_["metadata"]["ownerReferences"] == POOL.owner_references
    if sum(write.verb != "delete" for write in writes) > 1:
        assert server.generations == {seen + 1}
    assert server.apply(desired) == []


@given(st.data(), desired_states, desired_states)
def test_repair_after_random_damage(
    data: st.DataObject, before: list[list[dict[str, Any]]], after: list[list[dict[str, Any]]]
) -> None:
    """A right pool of which somebody deletes any slices, while we want another one, ends as we want it."""
    server = Server()
    server.apply(before)
    for name in data.draw(st.sets(st.sampled_from(sorted(server.slices)))) if server.slices else ():
        del server.slices[name]
    server.apply(after)
    assert server.devices() == after
    assert server.apply(after) == []


def test_differences_are_named_once() -> None:
    """Fields that the server dropped are named by their path, once for all devices, quantities compared by value."""
    stored = [
        {"name": d["name"], "attributes": d["attributes"], "capacity": {"memory": {"value": "40Gi"}}} for d in (A, B)
    ]
    assert sorted(differences([device("a", "40960Mi"), B], stored)) == [
        "allowMultipleAllocations",
        "capacity.memory.requestPolicy",
    ]
    assert differences([A], []) == ["devices"]
    assert differences([A, B], copy.deepcopy([A, B])) == []


def test_owner_less_slices_with_no_pool_wanted_are_left_to_nobody() -> None:
    """Withdrawing deletes every slice of ours, also those that look damaged."""
    server = Server()
    server.apply([[A], [B]])
    server.one(0)["spec"]["pool"]["generation"] = 5
    assert verbs(server.apply([])) == ["delete", "delete"]
    assert server.slices == {}
