"""Fields of JSON that others wrote, read in two ways: tolerant, where the API server is the one to refuse, and checked."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.quoting import quoted


def at(value: object, *path: str) -> Any:
    """What is there, down these fields; None if nothing is, or something on the way is no object."""
    for field in path:
        value = value.get(field) if isinstance(value, Mapping) else None
    return value


def mapping(value: object) -> Mapping[str, Any]:
    """The object; an empty one if it is something else."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: object) -> Sequence[Any]:
    """The list; an empty one if it is something else."""
    return value if isinstance(value, list | tuple) else ()


def mappings(value: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects of a list and their indices in it; none if it is something else."""
    return ((index, item) for index, item in enumerate(sequence(value)) if isinstance(item, Mapping))


def checked_mapping(value: object, where: str, *, show: bool = False) -> Mapping[str, Any]:
    """The object; an empty one for null or nothing, which are the same, as for Go.

    Args:
        value: What is there.
        where: Its field path, for the message.
        show: Quote in the message what is there.

    Raises:
        AdmissionError: It is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong(value, where, "must be an object", show)
    return value


def checked_sequence(value: object, where: str, *, show: bool = False) -> Sequence[Any]:
    """As `checked_mapping`, for a list."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise _wrong(value, where, "must be a list", show)
    return value


def _wrong(value: object, where: str, reason: str, show: bool) -> AdmissionError:
    return AdmissionError(f"{where}: Invalid value: {quoted(value)}: {reason}" if show else f"{where}: {reason}")
