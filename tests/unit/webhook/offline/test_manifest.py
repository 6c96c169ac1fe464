"""webhook.manifest: manifests as kubectl reads them, written so that it reads the same again."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from yaml.nodes import MappingNode, ScalarNode, SequenceNode

from hami_kubeletplugin.api.errors import SettingsError
from hami_kubeletplugin.webhook.offline import manifest


def read(text: str) -> Any:
    """What a file of one document means."""
    (document,) = manifest.read(text, "file.yaml")
    return document.value


# What `kubectl label --local -o json` (1.32) made of each.
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("08", 8),
        ("-08", -8),
        ("010", 8),
        ("0o17", 15),
        ("0x1F", 31),
        ("-0b11", -3),
        ("1_000", 1000),
        ("+12", 12),
        ("1e3", 1000),
        ("1.e3", 1000),
        (".5", 0.5),
        ("1_0.5", 10.5),
        ("1.10", 1.1),
        ("on", True),
        ("y", True),
        ("N", False),
        ("Off", False),
        ("~", None),
        ("", None),
        ("2026-01-02", "2026-01-02"),
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
        ("1:30", "1:30"),
        ("=", "="),
        ("4000Mi", "4000Mi"),
        ("0o", "0o"),
        ('"08"', "08"),
        ("'on'", "on"),
        ("!!str 08", "08"),
        ("!!binary aGVsbG8=", "hello"),
        ("|\n  a\n   b\n\n  c\n", "a\n b\n\nc\n"),
        (">-\n  a\n  b\n", "a b"),
    ],
)
def test_scalars_are_read_as_by_kubectl(text: str, value: object) -> None:
    """Each form of a scalar has the value, and the type, that kubectl sends; and has it still after it was written again."""
    source = f"a: {text}\n"
    found = read(source)["a"]
    assert (found, type(found)) == (value, type(value))
    (document,) = manifest.read(source, "f")
    assert document.root is not None
    assert read(manifest.write(document.root)) == {"a": value}


def test_keys_are_texts() -> None:
    """As in JSON: a key that looks like a number or a boolean is its text."""
    assert read("8: a\non: b\nno: c\n") == {"8": "a", "true": "b", "false": "c"}


def test_what_is_not_touched_is_written_as_it_was() -> None:
    """Quotes, blocks, forms of numbers and of lists stay."""
    text = "a: \"08\"\nb: 08\nc: 1e3\nd: 'on'\ne: |\n  one\n    two\nf: {x: [1, 2]}\ng: 2026-01-02\n"
    (document,) = manifest.read(text, "f")
    assert document.root is not None
    assert manifest.write(document.root) == text


def test_aliases_and_merges() -> None:
    """Anchors give what they stand for; a mapping's own fields win over merged ones."""
    text = "base: &b {x: 1, z: 2}\nlist: [*b, *b]\nmore: {<<: *b, x: 3}\nboth:\n  <<: [{x: 8}, *b]\n"
    assert read(text) == {
        "base": {"x": 1, "z": 2},
        "list": [{"x": 1, "z": 2}] * 2,
        "more": {"x": 3, "z": 2},
        "both": {"x": 8, "z": 2},
    }


def test_a_change_below_an_alias_stays_there() -> None:
    """What is replaced in one place keeps its content in the others, be they aliases or merged in."""
    text = "a: &a {r: {x: 1}, s: 2}\nb: *a\nc:\n  <<: *a\n"
    (document,) = manifest.read(text, "f")
    for where in ("a", "b", "c"):
        root = manifest.replaced(document.root, {(where, "r"): manifest.tree({"y": "08"})})
        expected = {name: {"r": {"x": 1}, "s": 2} for name in "abc"} | {where: {"r": {"y": "08"}, "s": 2}}
        assert read(manifest.write(root)) == expected


# What `kubectl label --local -o json` (1.37) made of each.
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1\t# comment\n", {"a": 1}),
        ("a:\t1\t\nb:\t\n  c: 2\n", {"a": 1, "b": {"c": 2}}),
        ("a: {b:\t1,\tc: 2\t}\t\n", {"a": {"b": 1, "c": 2}}),
        ("a: [\n\t1,\n\t2 ]\n", {"a": [1, 2]}),
        ("a: &x\t1\nb: !!str\t2\nc: *x\t\n", {"a": 1, "b": "2", "c": 1}),
        ("a: |\t\n  x\t\nb: x\ty\n", {"a": "x\t\n", "b": "x\ty"}),
        ("---\t# x\na: 1\n  \t# y\nb: 2\n", {"a": 1, "b": 2}),
        ("a: &x 1\nb: &x 2\nc: *x\n", {"a": 1, "b": 2, "c": 2}),
        ("a: {x: 1, <<: {x: 2}}\nb: {<<: {x: 2}, x: 1}\n", {"a": {"x": 2}, "b": {"x": 1}}),
    ],
)
def test_what_kubectl_takes_is_taken(text: str, value: object) -> None:
    """Tabs wherever kubectl has them, anchors that are given again, and what is merged behind a field of that name."""
    assert read(text) == value


@pytest.mark.parametrize(
    "text", ["a:\n\tb: 1\n", "\ta: 1\n", "a: 1\n\t# x\nb: 2\n", "a: 1\n\t\nb: 2\n", "a: |\n  \tx\n"]
)
def test_tabs_that_indent_are_refused(text: str) -> None:
    """As kubectl (1.37) does."""
    with pytest.raises(SettingsError, match=r"f, document 1, line \d: is not YAML: found a? ?(tab )?character "):
        manifest.read(text, "f")


def test_a_replaced_field_wins_over_what_is_merged() -> None:
    """Wherever the mapping has its `<<`: readers differ in which of two wins, so what is new comes last."""
    for text in ("{r: 1, <<: {r: 2}, s: 3}\n", "{<<: {r: 2}, r: 1, s: 3}\n"):
        (document,) = manifest.read(text, "f")
        made = manifest.write(manifest.replaced(document.root, {("r",): manifest.tree(4)}))
        assert made.replace(" ", "").endswith("s:3,r:4}\n")
        assert read(made) == {"r": 4, "s": 3}


def test_reading_is_not_left_to_python() -> None:
    """It takes less than half of what PyYAML's own reader takes, though it finds what everything means as well."""
    text = "".join(f"- name: a{number}\n  values: [x, 'y', {{z: {number}}}]\n" for number in range(400))

    def cost(work: Callable[[], object]) -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    ours = min(cost(lambda: manifest.read(text, "f")) for _ in range(3))
    assert ours < min(cost(lambda: yaml.compose(text, Loader=yaml.SafeLoader)) for _ in range(3)) / 2


def test_a_field_that_is_there_twice_is_replaced() -> None:
    """The last of them counts, so none of them may stay."""
    (document,) = manifest.read("r: 1\na: 0\nr: 2\n", "f")
    assert document.value["r"] == 2
    assert manifest.write(manifest.replaced(document.root, {("r",): manifest.tree(3)})) == "r: 3\na: 0\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n---\nb: [1\n", "f, document 2, line 4: is not YAML: "),
        ("# x\n---\na: b: c\n", "f, document 1, line 3: is not YAML: mapping values are not allowed in this context"),
        ("a:\n\t- b\n", "f, document 1, line 2: is not YAML: found character that cannot start any token"),
        ("a: 1\nb: \x07\n", "f, document 1, line 2: is not YAML: control characters are not allowed: "),
        ("a: *b\n", "f, document 1, line 1: is not YAML: found undefined alias 'b'"),
        ("a: &a\n  b: *a\n", "contains itself"),
        ("<<: 5\n", "<< needs another mapping"),
        ("? [a]\n: 1\n", "a key must be a text"),
        ("a: !!int x\n", "line 1: is not YAML: 'x' is no int"),
        ("[" * 900 + "]" * 900, "is nested too deeply"),
        ("[" * 100_000, "exceeded maximum nesting depth"),
        ("a: {{ .Values.gpus }}\n", "a key must be a text; it is a template: render it first, helm template CHART | "),
        ("{{- if .Values.on }}\na: 1\n{{- end }}\n", "it is a template: render it first, helm template CHART | "),
        ('{"a": [}', "f, document 1, line 1: is not YAML: "),
    ],
)
def test_what_is_not_yaml_is_located(text: str, message: str) -> None:
    """File, document and line."""
    with pytest.raises(SettingsError) as caught:
        manifest.read(text, "f")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_documents_and_comments() -> None:
    """Documents are numbered as people count them; those of comments only have no number; headings belong to a document."""
    text = "# file\n---\n# one\n\n# more\na: 1 # x\n--- # two\nb: 1\n...\n# tail\n---\n---\n"
    found = manifest.read(text, "f")
    assert [(one.number, one.line, one.value, one.heading) for one in found if one.number] == [
        (1, 2, {"a": 1}, "# one\n# more\n"),
        (2, 7, {"b": 1}, "# two\n"),
    ]
    assert "".join(one.text for one in found) == text


@given(
    st.lists(
        st.sampled_from(["a: 1\n", "---\n", "--- # x\n", "...\n", "# c\n", "\n", "--- {a: 1}\n", "b: 2\r\n", "c: 3"])
    )
)
def test_nothing_is_lost_between_documents(lines: list[str]) -> None:
    """The documents' texts together are the file, byte by byte."""
    text = "".join(lines)
    with suppress(SettingsError):
        assert "".join(one.text for one in manifest.read(text, "f")) == text


def test_half_a_character_in_json() -> None:
    """Kubectl reads U+FFFD in its place; no file could hold it."""
    [document] = manifest.read('{"a": "x\\ud800", "b": "\\ud83d\\ude00"}', "f")
    assert document.value == {"a": "x\ufffd", "b": "\U0001f600"}
    assert document.root is not None
    assert "\ufffd" in manifest.write(document.root) or "uFFFD" in manifest.write(document.root)


def test_lines_of_a_stream_of_json() -> None:
    """Each document knows where it begins, whatever is between them."""
    found = manifest.read('\n{"a": 1}\n\n  {"b":\n 2}{"c": 3}\n', "f")
    assert [(document.number, document.line) for document in found] == [(1, 2), (2, 4), (3, 5)]


def test_a_stream_of_json() -> None:
    """JSON objects one after the other, as `kubectl get -o json` or jq write them, with surrogates and tabs."""
    text = '{"a": "\\ud83d\\ude00",\n\t"b": 1}\n {"c": "08"}'
    found = manifest.read(text, "f")
    assert [(one.number, one.line, one.value) for one in found] == [(1, 1, {"a": "😀", "b": 1}), (2, 3, {"c": "08"})]
    assert [json.loads(one.text) for one in found] == [one.value for one in found]


texts = st.text(
    st.characters(codec="utf-8", exclude_characters="\x85\u2028\u2029\ufeff"), max_size=12
) | st.sampled_from(
    [
        "on",
        "y",
        "08",
        "1e3",
        "~",
        "",
        "a\n b\n\nc\n",
        " x\ny",
        "x\n\n\n",
        "\n\n x",
        "- a",
        "#",
        "a: b",
        "<<",
        "=",
        "---\n...",
        "1:30",
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)


@given(values)
def test_plain_data_survives(value: object) -> None:
    """What is written is read as the same, whatever it looks like."""
    assert read(f"---\nx:\n{manifest.write(manifest.tree([value]))}") == {"x": [value]}


@given(text=texts, style=st.sampled_from([None, "'", '"', "|", ">"]), flow=st.booleans())
def test_styles_survive(*, text: str, style: str | None, flow: bool) -> None:
    """A text of any style, in any place, is read as the same again."""
    kind = "tag:yaml.org,2002:"
    scalar, key = ScalarNode(f"{kind}str", text, style=style), ScalarNode(f"{kind}str", "k")
    inner = MappingNode(f"{kind}map", [(key, scalar)], flow_style=flow)
    node = MappingNode(
        f"{kind}map", [(key, SequenceNode(f"{kind}seq", [inner, scalar], flow_style=False))], flow_style=False
    )
    assert read(manifest.write(node)) == {"k": [{"k": text}, text]}
