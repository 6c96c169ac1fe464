"""The drawings in the packages' docstrings, which say what is where, are true."""

import ast
import re
from pathlib import Path
from typing import Final

import pytest

import hami_kubeletplugin

ROOT: Final = Path(hami_kubeletplugin.__file__).parent
PACKAGES: Final = sorted(path.parent for path in ROOT.rglob("__init__.py"))
LARGE: Final = 6
"""Modules that can be taken in without a drawing."""
_LINE: Final = re.compile(r" *([a-z_]+(?:, [a-z_]+)*)  +(?=\S)")
"""Names, and behind two spaces or more what they are for."""


def _drawing(package: Path) -> list[str]:
    """The names in the paragraph whose lines are all set in the same columns; empty if the docstring has none."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    for paragraph in text.split("\n\n"):
        lines = [_LINE.match(line) for line in paragraph.splitlines()]
        if all(lines) and len({line.end() for line in lines if line}) == 1:
            return [name for line in lines if line for name in line[1].split(", ")]
    return []


def _modules(package: Path) -> set[str]:
    """The modules and packages that are in a package."""
    modules = {path.stem for path in package.glob("*.py")} - {"__init__"}
    return modules | {path.parent.name for path in package.glob("*/__init__.py")}


def _imported(package: Path, module: str) -> set[str]:
    """What a module, or the modules of a package in there, import of their siblings."""
    dotted = ".".join((ROOT.name, *package.relative_to(ROOT).parts))
    files = [package / f"{module}.py"] if (package / f"{module}.py").exists() else (package / module).rglob("*.py")
    found = set[str]()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == dotted:
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{dotted}."):
                found.add((node.module or "").removeprefix(f"{dotted}.").partition(".")[0])
    return found & _modules(package) - {module}


def _named(package: Path) -> str:
    return str(package.relative_to(ROOT.parent))


@pytest.mark.parametrize("package", PACKAGES, ids=_named)
def test_large_packages_have_a_drawing(package: Path) -> None:
    """Who opens a package of more than six modules finds what is where."""
    assert _drawing(package) or len(_modules(package)) <= LARGE


@pytest.mark.parametrize("package", [package for package in PACKAGES if _drawing(package)], ids=_named)
def test_drawings_are_true(package: Path) -> None:
    """A drawing names each module and package once and nothing else, and whoever imports stands above what it imports."""
    drawn = _drawing(package)
    assert sorted(drawn) == sorted(_modules(package))
    upward = [
        f"{module} imports {imported}, which is drawn above it"
        for place, module in enumerate(drawn)
        for imported in _imported(package, module) & {*drawn[:place]}
    ]
    assert not upward
