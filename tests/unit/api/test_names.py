"""api.names: the names in the cluster's objects are there, and nowhere else."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import hami_kubeletplugin
from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.publish.devices import device
from tests.unit.publish.fakes import bus_id, gpu

PACKAGE: Final = Path(hami_kubeletplugin.__file__).parent
NAMES: Final = {value: name for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
BEING_REWRITTEN: Final = ("claims/", "hamicore/", "api/gpuconfig.py")
FROM_OUTSIDE: Final = ("demo.py", "fake/")
"""What people write, and what a cluster does, is written there as they would."""


def _documented() -> set[str]:
    """The attributes that docs/claims.md lists, standard ones with their domain."""
    text = (PACKAGE.parent / "docs" / "claims.md").read_text()
    found = re.search(r"Attributes for CEL selectors(.*?)\. What is not known", text, re.DOTALL)
    assert found
    own, standard = found[1].split("`device.attributes[")[1:]
    return {*re.findall(r"`(\w+)`", own)} | {
        f"resource.kubernetes.io/{name}" for name in re.findall(r"`(\w+)`", standard)
    }


def _literals(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module, less its docstrings."""
    for node in ast.walk(ast.parse(path.read_text())):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Constant) and isinstance(child.value, str) and not isinstance(node, ast.Expr):
                yield child.lineno, child.value


def test_documented_attributes_are_those_that_are_published() -> None:
    """A GPU of which all is known publishes the attributes that docs/claims.md lists, no more and no fewer, by our names."""
    published = device(gpu(nvlink_peers=frozenset({bus_id(1)})), Sharing(), nvlink_group=bus_id(0))["attributes"]
    assert published.keys() == _documented()
    assert published.keys() <= NAMES.keys()


def test_names_are_written_down_once() -> None:
    """No module says again what a name is. Of plain words such as `type` that can't be told, they mean other things, too."""
    repeated = [
        f"{path.relative_to(PACKAGE)}:{line}: {text!r} is names.{NAMES[text]}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "names.py" and not str(path.relative_to(PACKAGE)).startswith((*BEING_REWRITTEN, *FROM_OUTSIDE))
        for line, text in _literals(path)
        if text in NAMES and not re.fullmatch("[a-z]+", text)
    ]
    assert not repeated


def test_every_name_is_used() -> None:
    """A name that nobody uses is gone from here, too."""
    used = set[str]()
    for path in PACKAGE.rglob("*.py"):
        if path.name != "names.py":
            used.update(re.findall(r"\w+", path.read_text()))
    assert {name for name in vars(names) if name.isupper()} <= used
