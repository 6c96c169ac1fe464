"""Whatever somebody wrote into objects, people get an answer, and nothing of it reaches their terminal as more than text."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.kubectl import fits, fits_view, taints, usage_view, why_view
from hami_kubeletplugin.kubectl.cluster import Seen, claim_names, template_names
from hami_kubeletplugin.kubectl.inventory import inventory
from hami_kubeletplugin.kubectl.printable import printable
from hami_kubeletplugin.kubectl.why import why
from tests.unit.kubectl.objects import CLASS, DRIVER, Json, a100s, around, claim, exactly, pod, share, slice_

EVIL = "\x1b]0;x\x07\u202eevil\r\n\ud800" + "9" * 2000
STRANGE: Any = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.sampled_from(
        [EVIL, "", "1e999", "-5", "999999999999Ei", "9" * 250, [], {}, [None], [[]], {"a": None}, [EVIL], {EVIL: EVIL}]
    ),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything in an object."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    """The object with something else in one place."""
    if not path:
        return by
    copied = value.copy()
    copied[path[0]] = replaced(value[path[0]], path[1:], by)
    return copied


ALTERNATIVES = {
    "name": "g2",
    "firstAvailable": [{"name": "a", **exactly(memory="1Gi", count=2, tolerations=[{"key": "k"}])["exactly"]}],
}
LISTS = ("slices", "claims", "rules")
EVENT = {
    "type": "Warning",
    "reason": "r",
    "message": "m",
    "source": {"component": "c"},
    "lastTimestamp": "t",
    "series": {"count": 1},
}
WORLD: Json = {
    "slices": [slice_("n1", *a100s(1, taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}]))],
    "claims": [claim("c", on={"n1/hami-gpu-0": share(), "n1/gone": share()})],
    "rules": [{"spec": {"deviceSelector": {"driver": DRIVER, "pool": "n1"}, "taint": {"key": "k", "effect": "None"}}}],
    "class": CLASS,
    "wanted": claim(
        "w",
        exactly(memory="1Gi", selectors=['device.driver == "x"']),
        ALTERNATIVES,
        constraints=[{"matchAttribute": "a/b"}],
    ),
    "pod": pod(
        "w",
        nodeSelector={"a": "b"},
        tolerations=[{"key": "k", "operator": "Exists"}],
        schedulingGates=[{"name": "g"}],
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Gt", "values": ["1"]}]}]
                }
            }
        },
        containers=[{"name": "m", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
    ),
    "node": {
        "metadata": {"name": "n1", "labels": {"a": "b"}},
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
    },
    "event": EVENT,
}
PLACES = [
    path
    for path in places(WORLD)
    if len(path) > (2 if path[0] in LISTS else 1) and path[2:] not in (("metadata",), ("spec",))
]
"""All but the objects themselves: what the client hands on are objects with a name, and with a spec that is one."""


def shown(world: Json) -> list[str]:
    """All that is printed of it."""
    found = inventory(world["slices"], world["claims"], DRIVER, taints.rules(world["rules"]))
    answer = fits_view.answer(found, fits.parse("memory=1Gi"))
    about = around(
        world["pod"], classes={DRIVER: world["class"]}, nodes=(), events=[world["event"]], templates=frozenset()
    )
    about = type(about)(
        about.pod, {"w": world["wanted"]}, frozenset(), about.events, about.classes, {"n1": world["node"]}
    )
    assert all(map(len, (*claim_names(world["pod"]), *template_names(world["pod"]))))
    because = why(about, Seen(found, ()))
    json.dumps([usage_view.as_json(found), fits_view.as_json(answer), why_view.as_json(because)])
    return [
        *(usage_view.tables(found, by, wide=True) for by in ("node", "gpu", "namespace")),
        *usage_view.notes(found),
        fits_view.text(answer, wide=True),
        *fits_view.notes(answer),
        why_view.text(EVIL, because, wide=True),
    ]


@pytest.mark.parametrize("by", [EVIL, None, 7, [], {}, "1e999", [None], True], ids=lambda by: repr(by)[:9])
def test_anything_in_any_place(by: object) -> None:
    """One field of any object is something else: there is an answer all the same, in printable lines of a bounded length."""
    for path in PLACES:
        for text in shown(replaced(WORLD, path, by)):
            lines = text.split("\n")
            assert all(line.isprintable() for line in lines), path
            assert max(map(len, lines)) < 4000, path


@given(st.lists(st.tuples(st.sampled_from(PLACES), STRANGE), max_size=4))
def test_anything_in_several_places(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    """So it is when several fields are."""
    world = WORLD
    for path, by in changes:
        try:
            world = replaced(world, path, by)
        except (KeyError, IndexError, TypeError, AttributeError):
            continue  # that place is gone
    assert shown(world)


@given(st.text())
def test_printable(text: str) -> None:
    """Texts come out as one line without control characters, and harmless ones as they are."""
    line = printable(text)
    assert line.isprintable()
    if text.isprintable() and len(text) <= 1024:
        assert line == " ".join(text.split())
