"""What declarations mean: the texts below constants, fields and members of enumerations, as their module has them."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Final

_SPACE: Final = re.compile(r"\s+")


def meanings(of: ModuleType | type) -> Mapping[str, str]:
    """Name -> the text below it, in one line, for a module's constants or a class' fields.

    Raises:
        OSError: There is no source.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(of)))
    body = tree.body[0].body if isinstance(of, type) and isinstance(tree.body[0], ast.ClassDef) else tree.body
    found: dict[str, str] = {}
    for declared, text in pairwise(body):
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
            for name in _names(declared):
                found[name] = _SPACE.sub(" ", text.value.value).strip()
    return found


def _names(declared: ast.stmt) -> Iterable[str]:
    targets = [declared.target] if isinstance(declared, ast.AnnAssign) else getattr(declared, "targets", [])
    return [target.id for target in targets if isinstance(target, ast.Name)]


def first_paragraph(of: type) -> str:
    """What a class is: the first paragraph of its text, in one line."""
    return _SPACE.sub(" ", inspect.cleandoc(of.__doc__ or "").split("\n\n")[0])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of GitHub's Markdown."""
    lines = [head, ["---"] * len(head), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def code(text: str) -> str:
    """As code, empty if it is empty."""
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    """Bars would end a cell; what looks like a tag would be one."""
    return text.replace("|", "\\|").replace("<", "&lt;") if "`" not in text else text.replace("|", "\\|")
