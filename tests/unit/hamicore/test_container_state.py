"""The pod's UID is read from exactly one place of the state, whatever else is in it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.unit.hamicore.hook import CONTAINERD, CRIO, POD, Use, state

BAD, OTHER_POD, FINE = "stdin has no container state", "is prepared for another pod", "Is a directory"
"""What the hook says of a state. The fine one is followed by the region, which is a folder here, so that nothing is written."""


@pytest.fixture(scope="module")
def use(sanitized_hook: Path, tmp_path_factory: pytest.TempPathFactory) -> Use:
    """A program that looks for its own faults, and stops behind the state."""
    use = Use(tmp_path_factory.mktemp("state"), sanitized_hook)
    use.region.unlink()
    use.region.mkdir()
    return use


def verdict(use: Use, stdin: bytes) -> str:
    """What the hook for POD makes of a state."""
    message = use.run(POD, stdin=stdin).message
    (found,) = (words for words in (BAD, OTHER_POD, FINE) if words in message)
    return found


class Members(list[tuple[str, Any]]):
    """A JSON object, doubled names and all."""


def expected(stdin: bytes) -> str:
    """The same by Python's own parser."""

    def refuse(name: str) -> Any:
        raise ValueError(name)  # NaN and the like are no JSON

    try:
        whole = json.loads(stdin.decode("latin-1"), object_pairs_hook=Members, parse_constant=refuse)
    except ValueError:
        whole = None
    if not isinstance(whole, Members):
        return BAD
    found = [value for name, value in whole if name == "annotations"]
    if not all(value is None or isinstance(value, Members) for value in found):
        return BAD
    uids = [value for members in found for name, value in members or () if name in {CONTAINERD, CRIO}]
    if not all(isinstance(uid, str) for uid in uids):
        return BAD
    return FINE if all(uid == POD for uid in uids) else OTHER_POD


strings = st.one_of(
    st.text(max_size=12), st.sampled_from(["annotations", CONTAINERD, CRIO, POD, POD + "\0", "x" * 200])
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), strings),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(strings, inner, max_size=3)),
    max_leaves=8,
)
annotations = st.dictionaries(st.sampled_from([CONTAINERD, CRIO, "other"]), st.one_of(st.just(POD), values), max_size=3)
states = st.dictionaries(strings, values, max_size=3) | st.fixed_dictionaries(
    {"id": strings, "annotations": annotations}
)
documents = st.builds(
    lambda value, indent, plain: json.dumps(value, indent=indent, ensure_ascii=plain).encode(errors="surrogatepass"),
    states,
    st.sampled_from([None, 1]),
    st.booleans(),
)
pieces = st.sampled_from([*(bytes([c]) for c in b'"\\{}[],:0-.e \0\xff'), b"\\u00", b"nul"])


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A document with some bytes lost, doubled or put in."""
    document = draw(documents)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(document)))
        end = draw(st.integers(start, min(start + 8, len(document))))
        middle = draw(st.one_of(pieces, st.just(b""), st.just(document[start:end] * 2)))
        document = document[:start] + middle + document[end:]
    return document


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stdin=st.one_of(documents, damaged(), st.binary(max_size=40)))
@example(b"")
@example(b"[]")
@example(b"{}")
@example(b" {} \n")
@example(b"{}{}")
@example(b'{"annotations": null}')
@example(b'{"annotations": []}')
@example(b'{"annotations": {"io.kubernetes.pod.uid": 1}}')
@example(b'{"annotations": {}, "annotations": {"io.kubernetes.pod.uid": "x"}}')
@example(b'{"annotations": {"io.kubernetes.pod.uid": "%b", "io.kubernetes.pod.uid": "x"}}' % POD.encode())
@example(b'{"annotations": {"io.kubernetes.pod.uid": "%b\\u0000"}}' % POD.encode())
@example(b'{"annot\\u0061tions": {"io.kubernetes.pod.ui\\u0064": "x"}}')
@example(b'{"annotations": {"x": {"io.kubernetes.pod.uid": "x"}}}')
@example(b'{"x": {"annotations": {"io.kubernetes.pod.uid": "x"}}}')
@example(b'{"x": [{"io.kubernetes.pod.uid": "x"}, -0.5e+3, 01]}')
def test_a_state_is_understood_as_python_does(use: Use, stdin: bytes) -> None:
    """Any JSON and almost-JSON: malformed is refused, and a UID counts where it stands as an annotation, and only there."""
    found = verdict(use, stdin)
    # A wrong UID is told at once, before the rest is read.
    assert found == expected(stdin) or (found, expected(stdin)) == (OTHER_POD, BAD)


def test_text_that_looks_like_an_annotation_is_text(use: Use) -> None:
    """CRI-O repeats labels, quoted, in an annotation of its own, and anybody may write anything into theirs."""
    quoted = json.dumps({CRIO: "x", "annotations": {CRIO: "x"}})
    members = {"io.kubernetes.cri-o.Labels": quoted, 'x","io.kubernetes.pod.uid":"x': f'"{quoted}"', CRIO: POD}
    assert verdict(use, state(**members)) == FINE


def test_a_long_state_is_read_to_its_end(use: Use) -> None:
    """Annotations may be hundreds of kilobytes; what never ends is given up."""
    filler = '\\n"é' * 200_000
    assert verdict(use, state(before=filler, **{CRIO: POD}, after=filler)) == FINE
    assert verdict(use, state(before=filler, **{CRIO: "x"})) == OTHER_POD
    assert verdict(use, state(before="x" * (16 << 20))) == BAD


@pytest.mark.parametrize("kind", ["[", '{"a":'])
def test_deep_nesting_is_refused(use: Use, kind: str) -> None:
    """Rather than by the end of the stack."""
    deep = f'{{"x": {kind * 100_000}'
    assert verdict(use, deep.encode()) == BAD
    levels = 60
    closed = f'{{"x": {kind * levels} null {("]" if kind == "[" else "}") * levels} }}'
    assert verdict(use, closed.encode()) == FINE


@pytest.mark.parametrize("length", [127, 128, 129, 5_000])
def test_no_length_of_a_string_is_special(use: Use, length: int) -> None:
    """A UID that only begins like the right one is another, and so is one that does not fit."""
    assert verdict(use, state(**{CRIO: POD + "x" * (length - len(POD))})) == OTHER_POD
    assert verdict(use, state(**{CRIO + "x" * (length - len(CRIO)): "x"})) == FINE
