"""webhook.selection: HAMi's annotations and ours."""

import ast
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.webhook.conversion import annotations as module
from hami_kubeletplugin.webhook.conversion.annotations import Selection, read_annotations
from hami_kubeletplugin.webhook.conversion.cel import LONGEST
from tests.unit.webhook.conversion.oracle import admitted
from tests.unit.webhook.pods import SURROGATES, unhurried

WHERE = "metadata.annotations"
DRIVER = "gpu.hami.io"

USE_UUID, NOUSE_UUID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
USE_TYPE, NOUSE_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
LISTS = {USE_UUID: "uuids", NOUSE_UUID: "not_uuids", USE_TYPE: "types", NOUSE_TYPE: "not_types"}


def of(**annotations: Any) -> Selection:
    """What these annotations say."""
    return read_annotations(annotations, WHERE, DRIVER)


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", ()),
        (" \t\n", ()),
        (",, ,", ()),
        ("a", ("a",)),
        (" b ,a,", ("a", "b")),
        ("a,a", ("a",)),
        ("a b", ("a b",)),
        ("A,a", ("A", "a")),
        ('"x"\\', ('"x"\\',)),
    ],
)
def test_lists(name: str, value: str, words: tuple[str, ...]) -> None:
    """Commas part, blanks around go, nothing is no constraint, order and repeats mean nothing; the rest is kept as it is."""
    found = of(**{name: value})
    assert found == replace(Selection(), **{LISTS[name]: words})  # type: ignore[arg-type]
    assert len(found.expressions(DRIVER)) == bool(words)


def test_all_lists_together() -> None:
    """Each makes an expression of its own, all of which have to hold."""
    found = of(**{USE_UUID: "GPU-1", NOUSE_UUID: "GPU-2", USE_TYPE: "A100", NOUSE_TYPE: "A10"})
    uuid, not_uuid, model, not_model = found.expressions("other.example")
    assert '.uuid in ["GPU-1"]' in uuid
    assert '!(device.attributes["other.example"].uuid in ["GPU-2"])' in not_uuid
    assert '&& ["a100"].exists(' in model
    assert '&& !["a10"].exists(' in not_model
    assert DRIVER not in "".join(found.expressions("other.example"))


@pytest.mark.parametrize("name", [USE_TYPE, NOUSE_TYPE])
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("NVIDIA-NVIDIA L40S", "NVIDIA L40S"),
        ("nvidia-nvidia l40s", "nvidia l40s"),
        ("NVIDIA-NVIDIA-NVIDIA A10", "NVIDIA A10"),
        ("NVIDIA-NVIDIA", "NVIDIA"),
        ("NVIDIA-Tesla P4", "NVIDIA-Tesla P4"),
        ("NVIDIA L40S", "NVIDIA L40S"),
    ],
)
def test_names_that_hami_used_to_show(name: str, written: str, meant: str) -> None:
    """HAMi up to 2.7.1 put NVIDIA- before every name; who took that over means the GPU without."""
    assert of(**{name: f"x,{written}"}) == of(**{name: f"x,{meant}"})
    assert getattr(of(**{name: written}), LISTS[name]) == (meant,)


def test_both_names_of_a_model_are_one() -> None:
    """The old one is no further alternative, so the claim's template is the same."""
    assert of(**{USE_TYPE: "NVIDIA-NVIDIA L40S,NVIDIA L40S"}).types == ("NVIDIA L40S",)


MODELS = ["NVIDIA A100-SXM4-40GB", "NVIDIA A10", "Tesla P4", "NVIDIA H20", "NVIDIA H200", "NVIDIA-x", "nvidia y", ""]
PARTS = st.sampled_from(
    ["a100", "A10", "TESLA", "nvidia", "NVIDIA-Tesla", "h20", "4", "zzz", "-", " ", "", "\u212a", "\u017f"]
)


@unhurried
@given(st.sampled_from(MODELS), st.lists(PARTS, max_size=3).map(",".join), st.lists(PARTS, max_size=3).map(",".join))
def test_models_as_hami_matches_them(model: str, use: str, nouse: str) -> None:
    """Parts of the name in whatever case, `NVIDIA-` before it where it is missing: as CheckType says.

    Two differences, both of lists that can match no GPU in HAMi: commas alone are no constraint here, and letters beyond ASCII
    that have an ASCII capital are not taken for it.
    """
    if "\u017f" in use + nouse or (use.strip() and not use.replace(",", "").strip()):
        return
    found = of(**{USE_TYPE: use, NOUSE_TYPE: nouse})
    assert found.admits_model(model) == admitted(model, use, nouse)


@unhurried
@given(st.sampled_from(MODELS), st.lists(PARTS, max_size=3), st.lists(PARTS, max_size=3))
def test_models_as_the_expressions_say(model: str, use: list[str], nouse: list[str]) -> None:
    """Sizes for percentages come from just those GPUs that the expressions let through."""
    found = of(**{USE_TYPE: ",".join(use), NOUSE_TYPE: ",".join(nouse)})
    name = "".join(
        c.lower() if c.isascii() else c for c in (model if model.startswith("NVIDIA") else "NVIDIA-" + model)
    )
    verdict = True
    for expression in found.expressions(DRIVER):
        negated, listed = re.findall(r"&& (!?)(\[.*?\])\.exists", expression)[0]
        verdict &= any(part in name for part in ast.literal_eval(listed)) != bool(negated)
    assert found.admits_model(model) == verdict


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("nvidia.com/numa-bind", "resource.kubernetes.io/numaNode"),
        ("gpu.hami.io/same-pcie-root", "resource.kubernetes.io/pcieRoot"),
        ("gpu.hami.io/same-nvlink", "gpu.hami.io/nvlinkGroup"),
        ("gpu.hami.io/exclusive", None),
    ],
)
def test_flags(name: str, attribute: str | None) -> None:
    """True and false as Go reads them; something else is refused, since HAMi would take it for false."""
    for true in ("1", "t", "T", "TRUE", "true", "True", " true "):
        found = of(**{name: true})
        assert found == (Selection(same=(attribute,)) if attribute else Selection(exclusive=True))
    for false in ("0", "f", "F", "FALSE", "false", "False", "", "  "):
        assert of(**{name: false}) == Selection()
    for bad in ("yes", "tRUE", "2", "true,false", "\u0661", "on"):
        with pytest.raises(AdmissionError) as refused:
            of(**{name: bad})
        assert str(refused.value) == f'{WHERE}[{name}]: Invalid value: {bad!r}: must be "true" or "false"'


def test_flags_add_up() -> None:
    """All of them at once."""
    flags = ["nvidia.com/numa-bind", "gpu.hami.io/same-pcie-root", "gpu.hami.io/same-nvlink", "gpu.hami.io/exclusive"]
    found = read_annotations(dict.fromkeys(flags, "true"), WHERE, "other.example")
    assert found.exclusive
    assert set(found.same) == {
        "resource.kubernetes.io/numaNode",
        "resource.kubernetes.io/pcieRoot",
        "other.example/nvlinkGroup",
    }


def test_modes() -> None:
    """HAMi takes GPUs whose mode is a part of the annotation: ours are shared by hami-core."""
    for good in ("", " ", "hami-core", "mig,hami-core", "hami-core,mps"):
        assert of(**{"nvidia.com/vgpu-mode": good}) == Selection()
    for bad in ("mig", "mps", "MIG", "hami"):
        with pytest.raises(AdmissionError, match=r"^metadata\.annotations\[nvidia\.com/vgpu-mode\]: Invalid value: '"):
            of(**{"nvidia.com/vgpu-mode": bad})


@pytest.mark.parametrize(
    ("name", "value", "exclusive", "notes"),
    [
        ("hami.io/gpu-scheduler-policy", "binpack", False, 0),
        ("hami.io/gpu-scheduler-policy", "mutex", True, 0),
        ("hami.io/gpu-scheduler-policy", " mutex , binpack", True, 0),
        ("hami.io/gpu-scheduler-policy", "spread", False, 1),
        ("hami.io/gpu-scheduler-policy", "numa,topology-aware", False, 2),
        ("hami.io/gpu-scheduler-policy", "Mutex", False, 1),
        ("hami.io/gpu-scheduler-policy", "", False, 0),
        ("hami.io/node-scheduler-policy", "binpack", False, 1),
        ("hami.io/node-scheduler-policy", "spread", False, 1),
        ("hami.io/device-scoring-weights", "x", False, 1),
        ("hami.io/other", "x", False, 0),
    ],
)
def test_policies(name: str, value: str, exclusive: bool, notes: int) -> None:
    """What can't be kept is noted, with its path; mutex is "alone on the GPU"."""
    found = of(**{name: value})
    assert (found.exclusive, len(found.notes)) == (exclusive, notes)
    assert all(note.startswith(f"{WHERE}[{name}]") for note in found.notes)


READ = [*LISTS, "nvidia.com/numa-bind", "nvidia.com/vgpu-mode", "hami.io/gpu-scheduler-policy", "gpu.hami.io/exclusive"]


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("bad", [1, True, 0.5, ["a"], {"a": 1}])
def test_annotations_that_are_no_text(name: str, bad: Any) -> None:
    """They are refused; null is as if it weren't there."""
    with pytest.raises(AdmissionError) as refused:
        of(**{name: bad})
    assert str(refused.value) == f"{WHERE}[{name}]: Invalid value: {bad!r}: must be a string"
    assert of(**{name: None}) == Selection()


@pytest.mark.parametrize("name", LISTS)
def test_lists_that_are_too_long(name: str) -> None:
    """So many elements, or characters, as one expression can hold; above that the pod is refused, not silently cut."""
    most = module.MOST_VALUES
    assert len(getattr(of(**{name: ",".join(map(str, range(most)))}), LISTS[name])) == most
    for many in (",".join(map(str, range(most + 1))), "x" * LONGEST, "é" * 2000, '"' * 6000, "é" * 3_000_000):
        with pytest.raises(AdmissionError) as refused:
            of(**{name: many})
        assert str(refused.value).startswith(WHERE)
        assert len(str(refused.value)) < 400


@unhurried
@given(st.dictionaries(st.sampled_from(READ), st.one_of(st.text(max_size=200), SURROGATES)))
def test_any_text_is_read_or_refused(annotations: dict[str, str]) -> None:
    """Quotes, newlines, backslashes, halves of characters: a selection, or a refusal in printable words with its path."""
    try:
        expressions, message = of(**annotations).expressions(DRIVER), None
    except AdmissionError as refused:
        expressions, message = (), str(refused)
    assert message is None or (message.startswith(WHERE) and message.isprintable())
    assert all(expression.isascii() and len(expression) <= LONGEST for expression in expressions)
