"""What people wrote, which may be megabytes of anything, in a few words for a message, or on a terminal."""

import reprlib
from itertools import islice


class _Short(reprlib.Repr):
    def repr_dict(self, x: dict[object, object], level: int) -> str:
        """As inherited, which sorts all keys to show four of them."""
        return super().repr_dict(dict(islice(x.items(), self.maxdict + 1)), level)


_short = _Short()
_short.maxstring = _short.maxlong = _short.maxother = 60


def quoted(value: object) -> str:
    """A JSON value as Python writes it, cut in the middle: one line of printable text."""
    return _short.repr(value)


def printable(text: str) -> str:
    """The same without anything that a terminal would obey: `?` for each character that can't be shown."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)
