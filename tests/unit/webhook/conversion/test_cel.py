"""webhook.cel: what people wrote stays inside its literal. (The real API server evaluates these in the end-to-end tests.)."""

import ast
import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hami_kubeletplugin.webhook.conversion import cel
from tests.unit.webhook.pods import SURROGATES, unhurried

DRIVER = "gpu.hami.io"
NASTY = [
    "",
    '"',
    "\\",
    '\\"',
    "\\u0022",
    "\n\r\t\0\x7f",
    '"] || true || "" in ["',
    "'",
    "`${x}`",
    "é中😀",
    "\ufeffx",
    "\u2028",
    "\x80\xff",
    "\U0010ffff",
    "x" * 10_240,
    "r'''",
]
TEXTS = st.one_of(st.sampled_from(NASTY), st.text())
ANY_TEXTS = st.one_of(TEXTS, SURROGATES, st.tuples(TEXTS, SURROGATES, TEXTS).map("".join))

LITERAL = re.compile(r'"(?:[ !#-\[\]-~]|\\.)*"')


@unhurried
@given(TEXTS)
@example("\ufeff\ufeff")
def test_a_literal_means_its_text(text: str) -> None:
    """Decoded by another language in which these escapes mean the same, it is the text again."""
    literal = cel.string(text)
    assert ast.literal_eval(literal) == text
    assert set(re.findall(r"\\(.)", literal)) <= set('"\\uU'), "only escapes that CEL and Python share"


@unhurried
@given(ANY_TEXTS)
def test_a_literal_is_one_token_of_plain_ascii(text: str) -> None:
    """Whatever is in it, lone surrogates included: it starts and ends a literal, and nothing else is there."""
    literal = cel.string(text)
    assert LITERAL.fullmatch(literal)
    assert literal.isascii()
    assert literal.isprintable()


def test_lone_surrogates() -> None:
    """JSON can hold halves of characters, CEL can't: they match nothing that a GPU has."""
    assert cel.string("a\ud800b\udc00") == '"a?b?"'


@unhurried
@given(st.lists(ANY_TEXTS, min_size=1, max_size=4), st.booleans())
def test_no_text_changes_the_expression(texts: list[str], wanted: bool) -> None:
    """Without its literals an expression is the same whatever people wrote, and the literals hold just that."""
    harmless = ["x"] * len(texts)
    builders: tuple[Callable[[list[str]], str], ...] = (
        lambda values: cel.one_of(DRIVER, "uuid", values, wanted=wanted),
        lambda values: cel.model_contains(DRIVER, values, wanted=wanted),
    )
    for make in builders:
        assert LITERAL.sub("", make(texts)) == LITERAL.sub("", make(harmless))
        assert len(LITERAL.findall(make(texts))) == len(LITERAL.findall(make(harmless)))
    listed = cel.one_of(DRIVER, "uuid", texts)
    meant = [text.encode("utf-16", "replace").decode("utf-16") for text in texts]
    assert [ast.literal_eval(literal) for literal in LITERAL.findall(listed)[-len(texts) :]] == meant


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (
            cel.one_of(DRIVER, "uuid", ["GPU-1", "GPU-2"]),
            '"uuid" in device.attributes["gpu.hami.io"] && device.attributes["gpu.hami.io"].uuid in ["GPU-1", "GPU-2"]',
        ),
        (
            cel.one_of(DRIVER, "uuid", ["GPU-1"], wanted=False),
            '"uuid" in device.attributes["gpu.hami.io"] && !(device.attributes["gpu.hami.io"].uuid in ["GPU-1"])',
        ),
        (
            cel.model_contains(DRIVER, ["A100", "É"]),
            (
                '"productName" in device.attributes["gpu.hami.io"] && ["a100", "\\u00c9"].exists(part, '
                '(device.attributes["gpu.hami.io"].productName.startsWith("NVIDIA") ? '
                'device.attributes["gpu.hami.io"].productName : "NVIDIA-" + device.attributes["gpu.hami.io"].productName)'
                ".lowerAscii().contains(part))"
            ),
        ),
        (
            cel.memory_is(DRIVER, 40960),
            (
                '"memory" in device.capacity["gpu.hami.io"] && '
                'device.capacity["gpu.hami.io"].memory.compareTo(quantity("40960Mi")) == 0'
            ),
        ),
        (
            cel.memory_at_least(DRIVER, 1000),
            (
                '"memory" in device.capacity["gpu.hami.io"] && '
                'device.capacity["gpu.hami.io"].memory.compareTo(quantity("1000Mi")) >= 0'
            ),
        ),
    ],
)
def test_each_read_is_guarded(expression: str, text: str) -> None:
    """A device that lacks the attribute doesn't match, instead of stopping the scheduler."""
    assert expression == text


def test_unwanted_models_are_negated_once() -> None:
    """The guard stays: a GPU without a name isn't known to be another model."""
    wanted, unwanted = (cel.model_contains(DRIVER, ["a"], wanted=w) for w in (True, False))
    assert unwanted == wanted.replace(" && [", " && ![")
