"""api.names: the names in the cluster's objects are there, and nowhere else."""

import ast
import re
from collections import defaultdict
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
VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")
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


def _texts() -> Iterator[tuple[str, int, str, str]]:
    """All texts of the package as (module, line, text, the name that it would be): `NAME=` and `NAME_` are parts of f-strings."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = str(path.relative_to(PACKAGE))
        if not module.startswith(FROM_OUTSIDE):
            for line, text in _literals(path):
                yield module, line, text, text.partition("=")[0].removesuffix("_")


def test_documented_attributes_are_those_that_are_published() -> None:
    """A GPU of which all is known publishes the attributes that docs/claims.md lists, no more and no fewer, by our names."""
    published = device(gpu(nvlink_peers=frozenset({bus_id(1)})), Sharing(), nvlink_group=bus_id(0))["attributes"]
    assert published.keys() == _documented()
    assert published.keys() <= NAMES.keys()


def test_names_are_written_down_once() -> None:
    """No module says again what a name is. Of plain words such as `type` that can't be told, they mean other things, too."""
    repeated = [
        f"{module}:{line}: {text!r} is names.{NAMES[name]}"
        for module, line, text, name in _texts()
        if module != "api/names.py" and name in NAMES and not re.fullmatch("[a-z]+", text)
    ]
    assert not repeated


def test_variables_are_written_down_once() -> None:
    """An environment variable, one that names.py does not have among them, is said in one place of the whole package."""
    places = defaultdict[str, list[str]](list)
    for module, line, _, name in _texts():
        if VARIABLE.fullmatch(name):
            places[name].append(f"{module}:{line}")
    assert {*NAMES} & places.keys() >= {names.CUDA_DEVICE_MEMORY_LIMIT, names.NVIDIA_VISIBLE_DEVICES, names.CLAIM}
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_names_differ() -> None:
    """No value has two names."""
    assert len(NAMES) == sum(name.isupper() and isinstance(value, str) for name, value in vars(names).items())


def test_every_name_is_used() -> None:
    """A name that nobody uses is gone from here, too."""
    used = set[str]()
    for path in PACKAGE.rglob("*.py"):
        if path.name != "names.py":
            used.update(re.findall(r"\w+", path.read_text()))
    assert {name for name in vars(names) if name.isupper()} <= used
