"""Examples and docs belong together: no example that nobody finds, no snippet that nothing runs."""

import re
from fnmatch import fnmatchcase
from typing import Any

import pytest
import yaml

from hami_kubeletplugin.api.gpuconfig import GpuConfig
from tests import REPOSITORY
from tests.examples import FATES, FOLDER, IMAGE, examples, read

ALL = [*examples(FOLDER), *examples(FOLDER / "hami")]
PAGES = [REPOSITORY / "README.md", FOLDER / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


def snippets() -> list[tuple[str, Any]]:
    """What README.md and docs/claims.md show as YAML: (page, document)."""
    found = []
    for page in ("README.md", "docs/claims.md"):
        for block in re.findall(r"```yaml\n(.*?)```", (REPOSITORY / page).read_text(), re.DOTALL):
            found += [(page, document) for document in yaml.safe_load_all(block)]
    return found


def contains(whole: Any, part: Any) -> bool:
    """Whether `part` is in there somewhere."""
    inner = whole.values() if isinstance(whole, dict) else whole if isinstance(whole, list) else ()
    return fits(whole, part) or any(contains(value, part) for value in inner)


def fits(whole: Any, part: Any) -> bool:
    """Whether `whole` has all fields of `part`, with the same values; a list has to be the whole list."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(name in whole and fits(whole[name], value) for name, value in part.items())
    return bool(whole == part)


def test_snippets_of_the_docs_are_parts_of_examples() -> None:
    """What README.md and docs/claims.md show is, field for field, in a manifest that runs on a real cluster."""
    shown = snippets()
    assert len(shown) >= 4
    objects = [made for example in ALL for made in example.objects]
    for page, snippet in shown:
        assert contains(objects, snippet), f"{page} shows what no file in examples/ has: {snippet}"


def test_links_lead_to_examples_and_none_is_forgotten() -> None:
    """Each link to an example leads to a file, and each file is listed in examples/README.md."""
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+\.yaml)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(REPOSITORY)} names {target}"
    listed = re.findall(r"\]\(([^)#:]+\.yaml)\)", (FOLDER / "README.md").read_text())
    assert sorted(listed) == sorted(example.name for example in ALL)


def test_names_are_unique() -> None:
    """All claims' examples, or all of HAMi's, can be applied at once: none takes another's names."""
    for group in (examples(FOLDER), examples(FOLDER / "hami")):
        names = [(made["kind"], made["metadata"]["name"]) for example in group for made in example.objects]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("example", ALL, ids=lambda example: example.name)
def test_the_head_tells_of_each_container(example: Any) -> None:
    """The head of each example says what each container of it sees, or why its pod does not run; all use one image."""
    for pod, spec in example.pods():
        containers = [*spec.get("initContainers", []), *spec["containers"]]
        assert {each["image"] for each in containers} == {IMAGE}
        told = {container for name, container in example.seen if fnmatchcase(name, pod)}
        assert told == {each["name"] for each in containers} or pod in example.fates
    assert len(example.seen) + len(example.fates) > 0


def test_every_field_of_a_gpu_config_has_an_example() -> None:
    """A field that is added to GpuConfig needs an example."""
    texts = "".join(example.path.read_text() for example in ALL)
    fields = {field.alias or name for name, field in GpuConfig.model_fields.items()}
    assert not {name for name in fields if f"{name}: " not in texts}


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("# A pod.\n", "one line of the comment at its head"),
        ("# Expected:\n#   p: {sleeps: long}\n", f"sleeps is none of {FATES!r}"),
        ("# Expected:\n#   p/main: {limit: 4000m}\n", "limit can't be checked"),
    ],
)
def test_a_head_that_promises_nothing_is_an_error(tmp_path: Any, head: str, message: str) -> None:
    """An example without a promise, or with one that nobody understands, is not passed over."""
    path = tmp_path / "x.yaml"
    path.write_text(f"{head}kind: Pod\n")
    with pytest.raises(ValueError, match=re.escape(message)):
        read(path)
