"""A pod's way from its creation until it runs, out of the logs of those whom it passes. Pure.

One pod at a time: what is logged between two creations belongs to the first one. All stamps are one machine's.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple

POSTED: Final = "posted"
STEPS: Final[Mapping[str, str]] = {
    "created": "API server: takes the pod; asks the webhook",
    "claim asked": "controller manager: sees the pod",
    "claim made": "API server: takes the claim",
    "claim named": "controller manager: names it in the pod's status",
    "allocated": "scheduler: allocates",
    "bound": "scheduler: binds",
    "begun": "kubelet: sees the pod, mounts its volumes",
    "called": "kubelet: reads the claim, calls the daemon",
    "prepared": "daemon: prepares",
    "sandbox asked": "kubelet: goes on",
    "sandbox made": "containerd: makes the sandbox",
    "container asked": "kubelet: goes on to the container",
    "container made": "containerd: makes the container",
    "start asked": "kubelet: goes on to its start",
    "started": "containerd and runc: start it; the hook",
    "told": "kubelet: sees it run and says so",
}
"""What ends each step, in order, and whose time it is."""
LIMITED: Final[Mapping[str, str]] = {
    "system:serviceaccount:kube-system:resource-claim-controller": "kube-controller-manager",
    "system:kube-scheduler": "kube-scheduler",
    "system:node:": "kubelet",
}
"""Who may send only so many requests a second, by what their users' names start with."""
_NOT_LIMITED: Final = frozenset({"events", "leases", "nodes"})
"""What they send through clients of their own, or not for a pod."""
_CONTAINERD: Final = re.compile(
    r'^time="(?P<at>[^"]+)" level=info msg="(?P<what>RunPodSandbox|CreateContainer|StartContainer) .*?(?P<done> returns .*)?"$'
)
_AT_RUNTIME: Final = {
    "RunPodSandbox": ("sandbox asked", "sandbox made"),
    "CreateContainer": ("container asked", "container made"),
    "StartContainer": ("start asked", "started"),
}


class Mark(NamedTuple):
    """Something that was logged.

    Attributes:
        at: Seconds since 1970.
        name: The milestone that it may be, or who of LIMITED sent a request.
        pod: Of which pod, where the log says so.
    """

    at: float
    name: str
    pod: str = ""


def audited(lines: Iterable[str]) -> Iterator[Mark]:
    """What the API server was asked, from its audit log."""
    for line in lines:
        event = json.loads(line)
        if event["stage"] == "ResponseComplete" and "objectRef" in event and event["responseStatus"]["code"] < 300:
            yield from _asked(event)


def prepared(lines: Iterable[str]) -> Iterator[Mark]:
    """When the daemon was called and when it was done, from its log."""
    for line in lines:
        entry = json.loads(line)
        if entry["event"] == "claim prepared":
            end = _seconds(entry["timestamp"])
            yield Mark(end - entry["milliseconds"] / 1000, "called")
            yield Mark(end, "prepared")


def run(lines: Iterable[str]) -> Iterator[Mark]:
    """What containerd was asked and when it was done, from its log."""
    for line in lines:
        if found := _CONTAINERD.match(line.strip()):
            yield Mark(_seconds(found["at"]), _AT_RUNTIME[found["what"]][bool(found["done"])])


class Way(NamedTuple):
    """Of one pod.

    Attributes:
        pod: Its name.
        milestones: Seconds from when its creation was asked for. A plain pod misses some of them.
        requests: How many each of LIMITED sent.
    """

    pod: str
    milestones: Mapping[str, float]
    requests: Mapping[str, int]

    def durations(self) -> dict[str, float]:
        """Milliseconds of each step, since the milestone before that the pod has; 0 for one that it doesn't have."""
        last, took = 0.0, {}
        for name in STEPS:
            at = self.milestones.get(name, last)
            took[name], last = 1000 * (at - last), at
        return took


def ways(marks: Iterable[Mark]) -> Iterator[Way]:
    """Each pod's. Of marks of the same name the first counts that comes after the milestone before."""
    ordered = sorted(marks)
    starts = [index for index, mark in enumerate(ordered) if mark.name == POSTED]
    for start, end in pairwise([*starts, len(ordered)]):
        pod = ordered[start].pod
        # The kubelet comes back to earlier pods at times.
        of_pod = [mark for mark in ordered[start:end] if mark.pod in {"", pod}]
        names = [mark.name for mark in of_pod]
        yield Way(pod, _milestones(of_pod), {who: names.count(who) for who in LIMITED.values()})


def _milestones(marks: Sequence[Mark]) -> dict[str, float]:
    began = last = marks[0].at
    found = {}
    for name in STEPS:
        # The kubelet's first trace: that it reads the claim, or without one the sandbox.
        names = ("claim read", "sandbox asked") if name == "begun" else (name,)
        at = next((mark.at for mark in marks if mark.name in names and mark.at >= last), None)
        if at is not None:
            found[name], last = at - began, at
    return found


def _asked(event: Mapping[str, Any]) -> Iterator[Mark]:
    begin, end = _seconds(event["requestReceivedTimestamp"]), _seconds(event["stageTimestamp"])
    of, user = event["objectRef"], event["user"]["username"]
    pod = of.get("name", "") if of["resource"] == "pods" else ""
    who = next((who for start, who in LIMITED.items() if user.startswith(start)), "")
    if who and of["resource"] not in _NOT_LIMITED:
        yield Mark(begin, who, pod)
    match event["verb"], "/".join(filter(None, (of["resource"], of.get("subresource")))):
        case "create", "pods":
            yield Mark(begin, POSTED, pod)
            yield Mark(end, "created", pod)
        case "create", "resourceclaims":
            yield Mark(begin, "claim asked")
            yield Mark(end, "claim made")
        case "patch" | "update", "pods/status":
            yield Mark(end, "told" if who == "kubelet" else "claim named", pod)
        case "patch" | "update", "resourceclaims/status":
            yield Mark(end, "allocated")
        case "create", "pods/binding":
            yield Mark(end, "bound", pod)
        case "get", "resourceclaims" if who == "kubelet":
            yield Mark(begin, "claim read")


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", stamp)).timestamp()
