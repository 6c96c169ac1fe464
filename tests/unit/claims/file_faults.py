"""Lets the k-th file operation fail, or the process die there; counts operations when told to do neither."""

import errno
import os
import pathlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hami_kubeletplugin.hamicore import mounts

OPERATIONS = (
    "open",
    "write",
    "fsync",
    "rename",
    "replace",
    "link",
    "symlink",
    "unlink",
    "mkdir",
    "rmdir",
    "chmod",
    "fchmod",
    "listdir",
    "scandir",
    "stat",
    "lstat",
    "fstat",
)
MOUNTING = ("mount", "unmount")
WRITING = {"write", "fsync", "rename", "replace", "link", "symlink", "unlink", "mkdir", "rmdir", "chmod", "fchmod"}


class Died(BaseException):
    """The process ended at this operation; nothing of it runs any more."""


class Faults:
    """What happens to file operations.

    Attributes:
        names: The operations so far, in order.
    """

    def __init__(self, root: pathlib.Path, at: int | None, failure: OSError | type[Died] | None) -> None:
        self.names: list[str] = []
        self._root, self._at, self._failure = str(root), at, failure
        self._dead = False

    def wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """The operation, with what is to happen to it. Paths elsewhere (of Python itself) are left alone."""

        def operation(*args: Any, **kwargs: Any) -> Any:
            target = args[0] if args else ""
            ours = "dir_fd" in kwargs or not isinstance(target, str | bytes | os.PathLike)
            if not ours and not os.fsdecode(target).startswith(self._root):
                return real(*args, **kwargs)
            if self._dead:
                raise Died
            self.names.append(name)
            if self._failure is not None and len(self.names) - 1 == self._at:
                if isinstance(self._failure, OSError):
                    raise self._failure
                self._dead = True
                raise self._failure
            return real(*args, **kwargs)

        return operation

    @property
    def writes(self) -> list[str]:
        """Operations that change something."""
        return [name for name in self.names if name in WRITING]

    @property
    def happened(self) -> bool:
        """Whether there was an operation to fail."""
        return self._at is None or len(self.names) > self._at


@contextmanager
def faults(root: pathlib.Path, at: int | None = None, failure: OSError | type[Died] | None = None) -> Iterator[Faults]:
    """Operations below `root` (and by descriptor) are counted from 0; number `at` fails with `failure`."""
    made = Faults(root, at, failure)
    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, made.wrap(name, getattr(os, name)))
        for name in MOUNTING:
            patch.setattr(mounts, name, made.wrap(name, getattr(mounts, name)))
        patch.setattr(pathlib.Path, "read_bytes", made.wrap("read", pathlib.Path.read_bytes))
        yield made


def error(number: int) -> OSError:
    """As the kernel gives it."""
    return OSError(number, os.strerror(number), "somewhere")


ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES)
