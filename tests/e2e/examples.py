"""Examples on the cluster: applied all at once, as they are, and looked at side by side; each test tells what came of its own."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.e2e.cluster import NAMESPACE, Cluster, KubectlFailed
from tests.e2e.conftest import clean
from tests.e2e.daemon import DRIVER, Daemon
from tests.e2e.inside import Inside, read
from tests.e2e.manifests import LOOK
from tests.e2e.test_publish import published
from tests.examples import Example, Json, Seen
from tests.waiting import wait_for

EVENTS = {"waits": "FailedScheduling", "does not start": "FailedPrepareDynamicResources"}
PATIENCE = 90
"""Seconds until all of them run."""
AT_ONCE = 4
"""Examples that are looked into at a time."""
LIMIT = ("CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT")
NODE = """\
gpus:
  # As the node `mixed`, on which people try the examples first.
  - {model: t4, pciBusID: "0000:af:00.0", pcieRoot: "pci0000:ae", numaNode: 1}
  - {model: l40s, pciBusID: "0000:86:00.0", pcieRoot: "pci0000:85", numaNode: 1}
  - {model: t4, pciBusID: "0000:3b:00.0", pcieRoot: "pci0000:3a", numaNode: 0}
  - {model: l40s, pciBusID: "0000:5e:00.0", pcieRoot: "pci0000:5d", numaNode: 0}
  # Joined by NVLink, two below each PCIe root.
  - {model: a100}
  - {model: a100}
  - {model: a100}
  - {model: a100}
  # So that whole GPUs are left however the others are placed.
  - {model: l40s}
  - {model: l40s}
  - {model: l40s}
  - {model: l40s}
  - {model: l40s}
"""


@dataclass(frozen=True)
class Outcome:
    """What became of all examples, asked once for all: each question to the cluster costs a start of kubectl.

    Attributes:
        refused: Path of an example to the message.
        devices: What the node has published, by UUID.
        pods: All of the cluster.
        events: All of the cluster.
    """

    refused: dict[str, str]
    devices: dict[str, Json]
    pods: list[Json]
    events: list[Json]

    def running(self, pattern: str, namespace: str) -> list[Json]:
        """The pods of this name, which have to run."""
        found = [
            each
            for each in self.pods
            if each["metadata"]["namespace"] == namespace and fnmatchcase(each["metadata"]["name"], pattern)
        ]
        assert found, f"there is no pod {pattern} in {namespace}"
        for each in found:
            conditions = {one["type"]: one["status"] for one in each["status"].get("conditions", [])}
            assert conditions.get("Ready") == "True", f"{each['metadata']['name']} does not run: {each['status']}"
        return found

    def told(self, pod: str, reason: str) -> list[str]:
        """Messages of a pod's events."""
        found = [
            each["message"]
            for each in self.events
            if (each["metadata"]["namespace"], each["involvedObject"]["name"], each["reason"])
            == (NAMESPACE, pod, reason)
        ]
        assert found, f"{pod} has no event {reason}"
        return found

    def check_settled(self, example: Example) -> None:
        """Its pods have got to where its head says that they get."""
        for pattern, _ in example.seen:
            self.running(pattern, space(example, pattern))
        for pod, (fate, _) in example.fates.items():
            if fate != "refused":
                self.told(pod, EVENTS[fate])


@contextlib.contextmanager
def checks(
    cluster: Cluster, daemon: Daemon, examples: Sequence[Example], folder: Path, *more: Json
) -> Iterator[dict[str, Future[None]]]:
    """Apply all of these, and objects that they need, on a node with GPUs for all; gives the check of each by its name."""
    node = folder / "node.yaml"
    node.write_text(NODE)
    if daemon.is_running:
        assert daemon.stop() == 0
    daemon.start("--simulate", str(node))
    spec = wait_for("the node's GPUs", lambda: whole_node(cluster))
    refused: dict[str, str] = {}
    objects = [*more]
    for example in examples:
        if any(fate == "refused" for fate, _ in example.fates.values()):
            try:
                cluster.apply(*map(placed, example.objects))
            except KubectlFailed as error:
                refused[example.name] = str(error)
        else:
            objects += map(placed, example.objects)
    for made in objects:
        if made["kind"] == "Namespace":
            cluster.make_namespace(made["metadata"]["name"])
    cluster.apply(*objects)
    try:
        devices = {each["attributes"]["uuid"]["string"]: each for each in spec["devices"]}
        outcome = settled(cluster, examples, refused, devices)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield {each.name: pool.submit(check, cluster, each, outcome) for each in examples}
    finally:
        for kind in ("Namespace", "DeviceClass"):
            names = [each["metadata"]["name"] for each in objects if each["kind"] == kind]
            if names:
                cluster.kubectl("delete", kind.lower(), *names, "--wait=false")
        # Those who would make pods anew first.
        clean(cluster, daemon, "deployments", "replicasets")
        assert daemon.stop() == 0


def whole_node(cluster: Cluster) -> Json:
    """The spec of the node's slice, once all GPUs are in it."""
    spec: Json = published(cluster)["spec"]
    assert len(spec["devices"]) == NODE.count("model:"), spec
    return spec


def settled(
    cluster: Cluster, examples: Sequence[Example], refused: dict[str, str], devices: dict[str, Json]
) -> Outcome:
    """Wait until pods run, or don't for the reason told; those that never do are left to the checks."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = cluster.all("pods,events", NAMESPACE, "-A")
        pods, events = ([each for each in found if each["kind"] == kind] for kind in ("Pod", "Event"))
        outcome = Outcome(refused, devices, pods, events)
        try:
            for example in examples:
                outcome.check_settled(example)
        except AssertionError:
            if time.monotonic() < deadline:
                time.sleep(0.5)
                continue
        return outcome


def placed(made: Json) -> Json:
    """An object in the tests' namespace, if it names none itself; no other field is changed."""
    return made | {"metadata": {"namespace": NAMESPACE} | made["metadata"]}


def space(example: Example, pattern: str) -> str:
    """The namespace of its pods of this name."""
    name = pattern.removesuffix("-*")
    [found] = {placed(each)["metadata"]["namespace"] for each in example.objects if each["metadata"]["name"] == name}
    return str(found)


def check(cluster: Cluster, example: Example, outcome: Outcome) -> None:
    """All that the head of an example says is so."""
    refusal = outcome.refused.get(example.name, "it was not refused")
    for pod, (fate, reason) in example.fates.items():
        told = [refusal] if fate == "refused" else outcome.told(pod, EVENTS[fate])
        assert all(reason in message for message in told), told
    for (pattern, container), seen in example.seen.items():
        namespace = space(example, pattern)
        for found in outcome.running(pattern, namespace):
            inside = look(cluster, found, container, namespace)
            check_inside(f"{found['metadata']['name']}/{container}", inside, seen, outcome.devices)


def look(cluster: Cluster, pod: Json, container: str, namespace: str) -> Inside:
    """What a container sees; of one that has ended, what it has written: its variables."""
    name = pod["metadata"]["name"]
    if container in {each["name"] for each in pod["spec"].get("initContainers", [])}:
        written = cluster.kubectl("logs", name, "-n", namespace, "-c", container)
        return Inside(env=dict(line.split("=", 1) for line in written.splitlines()), preload="", mounts={}, report={})
    return read(cluster.kubectl("exec", name, "-n", namespace, "-c", container, "--", "sh", "-c", LOOK))


def check_inside(where: str, inside: Inside, seen: Seen, devices: dict[str, Any]) -> None:
    """A container sees what it is to see: these variables, no other limit, and the library keeps just those limits."""
    uuids = [inside.report[key] for key in sorted(inside.report, key=natural) if key.startswith("uuid.")]
    gpus = [devices[uuid] for uuid in uuids]
    expected = dict(seen.variables)
    for name, value in seen.variables.items():
        if value == "all":
            memory = gpus[int(name.rpartition("_")[2])]["capacity"]["memory"]["value"]
            expected[name] = f"{mib(memory)}m"
    limits = {name for name in inside.env if name.startswith(LIMIT)}
    same(f"variables of {where}", {name: inside.env.get(name) for name in expected.keys() | limits}, expected)
    if inside.mounts:  # it was looked into, and so the library has said what it keeps
        same(f"limits (MiB, percent) that the library keeps in {where}", inside.limits, kept(expected))
        same(f"{where} has HAMi-core", bool(inside.preload), bool(kept(expected)))
    same(f"GPUs of {where}", sorted(set(uuids)), sorted(uuids))
    for number, wanted in seen.gpus.items():
        same(f"GPU {number} of {where}", {name: attribute(gpus[number], name) for name in wanted}, wanted)
    if seen.same:
        values = {attribute(gpu, seen.same) for gpu in gpus}
        assert len(gpus) > 1, f"{where} has {len(gpus)} GPU"
        assert len(values) == 1, f"{seen.same} of the GPUs of {where}: {values}"
        assert None not in values, f"GPUs of {where} have no {seen.same}"


def same(what: str, found: object, expected: object) -> None:
    """As `assert found == expected`; pytest shows the two sides of an assertion in test modules only."""
    assert found == expected, f"{what}: {found}, but the example's head says {expected}"


def kept(variables: dict[str, str]) -> list[tuple[int, int]]:
    """(MiB, percent) of each GPU, as the library should say it: 0 percent is no limit, and so is 100."""
    memory, cores = LIMIT
    count = sum(name.startswith(memory) for name in variables)
    return [
        (int(variables[f"{memory}_{index}"].removesuffix("m")), int(variables.get(f"{cores}_{index}", "0")) % 100)
        for index in range(count)
    ]


def attribute(device: Json, name: str) -> object:
    """A device's attribute, of ours or a standard one; None if it has none."""
    attributes = device["attributes"]
    value = (
        attributes.get(name) or attributes.get(f"resource.kubernetes.io/{name}") or attributes.get(f"{DRIVER}/{name}")
    )
    return next(iter(value.values())) if value else None


def mib(quantity: str) -> int:
    """A published memory in MiB."""
    units = {"Ki": 1 / 1024, "Mi": 1, "Gi": 1024, "Ti": 1024**2}
    return int(int(quantity[:-2]) * units[quantity[-2:]])


def natural(key: str) -> int:
    """The number at the end of a key, to sort by."""
    end = key.rpartition(".")[2]
    return int(end) if end.isdigit() else -1
