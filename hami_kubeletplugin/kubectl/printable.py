"""Texts that anybody may have written into objects, made safe for a terminal. Pure."""

from typing import Final

LONGEST: Final = 1024
"""Characters of a message; events have no more."""


def printable(text: object, longest: int = LONGEST) -> str:
    """One line without control characters, escape sequences or marks that turn the direction of writing."""
    cut = text[: longest + 1] if isinstance(text, str) else str(text)[: longest + 1]
    cut = " ".join(cut.split())
    if not cut.isprintable():
        cut = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in cut)
    return cut if len(cut) <= longest else f"{cut[: longest - 3]}..."
