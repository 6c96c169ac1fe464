"""A pod's way, as the bench reads it out of logs."""

import json
from typing import Any

import pytest

from bench.timeline import LIMITED, STEPS, Mark, Way, audited, prepared, run, ways

DAY = "2026-11-30T12:00:"
NOON = 1796040000.0
NONE = dict.fromkeys(LIMITED.values(), 0)


def audit(verb: str, resource: str, user: str, begin: str, end: str, *, code: int = 200, **of: str) -> str:
    """A line of the audit log; begin and end are seconds."""
    event: dict[str, Any] = {
        "stage": "ResponseComplete",
        "verb": verb,
        "user": {"username": user},
        "objectRef": {"resource": resource, **of},
        "responseStatus": {"code": code},
        "requestReceivedTimestamp": f"{DAY}{begin}Z",
        "stageTimestamp": f"{DAY}{end}Z",
    }
    return json.dumps(event)


def test_an_audit_log_tells_when_the_api_server_was_asked_and_when_it_answered() -> None:
    """Stamps are exact to the microsecond."""
    lines = [
        audit("create", "pods", "admin", "01.000000", "01.002500", name="gpu-1"),
        audit("create", "resourceclaims", "controller", "01.100000", "01.101000"),
        audit("patch", "pods", "controller", "01.102000", "01.103000", subresource="status"),
        json.dumps({"stage": "ResponseComplete", "requestURI": "/readyz"}),
        audit("create", "pods", "scheduler", "01.104000", "01.105000", subresource="binding"),
    ]
    assert [(mark.name, round(mark.at - NOON, 6)) for mark in audited(lines)] == [
        ("posted", 1.0),
        ("created", 1.0025),
        ("claim asked", 1.1),
        ("claim made", 1.101),
        ("claim named", 1.103),
        ("bound", 1.105),
    ]


def test_refused_requests_and_early_stages_are_no_milestones() -> None:
    """A conflict is tried again; only what succeeded counts."""
    started = json.loads(audit("create", "pods", "admin", "01.0", "01.1", name="gpu-1")) | {"stage": "RequestReceived"}
    conflict = audit("update", "resourceclaims", "scheduler", "01.0", "01.1", code=409, subresource="status")
    assert not [*audited([json.dumps(started), conflict])]


def test_requests_that_count_against_a_limit_are_counted() -> None:
    """Events, leases and nodes go through other clients, or have nothing to do with a pod; nor have other pods."""
    node, scheduler = "system:node:node-1", "system:kube-scheduler"
    lines = [
        audit("create", "pods", "admin", "01.000000", "01.002500", name="gpu-1"),
        audit("get", "resourceclaims", node, "01.1", "01.2"),
        audit("patch", "pods", node, "01.3", "01.4", subresource="status", name="gpu-1"),
        audit("patch", "pods", node, "01.3", "01.4", subresource="status", name="gpu-0"),
        audit("create", "pods", scheduler, "01.2", "01.3", subresource="binding", name="gpu-1"),
        audit("create", "events", node, "01.3", "01.4"),
        audit("update", "leases", node, "01.3", "01.4"),
    ]
    [way] = ways(audited(lines))
    assert way.requests == {"kube-controller-manager": 0, "kube-scheduler": 1, "kubelet": 2}


def test_the_daemons_log_tells_when_it_was_called() -> None:
    """A line comes at the end of a prepare and has its duration."""
    entry = {"event": "claim prepared", "milliseconds": 12.5, "timestamp": f"{DAY}02.000000Z"}
    marks = [*prepared([json.dumps(entry), json.dumps({"event": "claim unprepared"})])]
    assert [(mark.name, round(mark.at - NOON, 6)) for mark in marks] == [("called", 1.9875), ("prepared", 2.0)]


def test_containerds_log_tells_of_sandbox_and_container() -> None:
    """Its stamps have nine digits; other lines are left alone."""
    texts = [
        r"RunPodSandbox for name:\"gpu-1\" uid:\"1\" namespace:\"n\"",
        r"connecting to shim abc",
        r"RunPodSandbox for name:\"gpu-1\" uid:\"1\" namespace:\"n\" returns sandbox id \"abc\"",
        r"CreateContainer within sandbox \"abc\" for container name:\"main\"",
        r"CreateContainer within sandbox \"abc\" for name:\"main\" returns container id \"def\"",
        r"StartContainer for \"def\"",
        r"StartContainer for \"def\" returns successfully",
    ]
    lines = [
        f'time="{DAY}{second:02}.123456789Z" level=info msg="{text}"\n' for second, text in enumerate(texts, start=1)
    ]
    marks = [*run(lines)]
    assert [(mark.name, round(mark.at - NOON, 6)) for mark in marks] == [
        ("sandbox asked", 1.123456),
        ("sandbox made", 3.123456),
        ("container asked", 4.123456),
        ("container made", 5.123456),
        ("start asked", 6.123456),
        ("started", 7.123456),
    ]


def test_each_pod_has_what_happened_until_the_next_one() -> None:
    """Logs may come in any order, and a milestone counts only after the one before.

    A status that the kubelet wrote while the container was not yet started does not say that it runs.
    """
    marks = [
        *(
            Mark(at, name)
            for at, name in [(20.5, "sandbox asked"), (21.0, "started"), (20.75, "told"), (21.25, "told")]
        ),
        *(Mark(at, name) for at, name in [(10.25, "claim read"), (11.0, "sandbox asked"), (12.0, "started")]),
        Mark(20.0, "posted", "plain-1"),
        Mark(10.0, "posted", "gpu-1"),
    ]
    gpu, plain = ways(marks)
    assert gpu == Way("gpu-1", {"begun": 0.25, "sandbox asked": 1.0, "started": 2.0}, NONE)
    assert plain == Way("plain-1", {"begun": 0.5, "sandbox asked": 0.5, "started": 1.0, "told": 1.25}, NONE)


def test_steps_add_up_to_the_whole_way() -> None:
    """What a pod has no part in takes no time, and the next step begins where the last one ended."""
    took = Way("plain-1", {"created": 0.002, "bound": 0.01, "begun": 0.3, "told": 0.5}, NONE).durations()
    assert took.keys() == STEPS.keys()
    assert {name: value for name, value in took.items() if value} == pytest.approx(
        {"created": 2, "bound": 8, "begun": 290, "told": 200}
    )
    assert sum(took.values()) == pytest.approx(500)
