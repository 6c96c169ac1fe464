"""What people wrote, which may be 10 KiB of anything, in a few words for a message."""

import reprlib

_short = reprlib.Repr()
_short.maxstring = _short.maxlong = _short.maxother = 60


def quoted(value: object) -> str:
    """A JSON value as Python writes it, cut in the middle: one line of printable text."""
    return _short.repr(value)
