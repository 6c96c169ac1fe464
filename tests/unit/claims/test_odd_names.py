"""What has the name of a claim's spec or record and is none: set aside, said, and in nobody's way."""

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from tests.unit.claims.node import Node, devices, prepared, uids
from tests.unit.claims.objects import claim, container, pod, result


def _socket(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as made:
        made.bind("odd")
        os.rename("odd", path.name)


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _dangling(path: Path) -> None:
    path.symlink_to("/nowhere")


def _to_a_folder(path: Path) -> None:
    path.symlink_to(path.parent)


def _folder_with_something(path: Path) -> None:
    path.mkdir()
    (path / "x").touch()


def _to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


ODD = [Path.mkdir, os.mkfifo, _socket, _loop, _dangling, _to_a_folder, _folder_with_something, _to_a_device]


@pytest.mark.parametrize("which", ["spec", "record"])
@pytest.mark.parametrize("put", ODD, ids=lambda put: put.__name__)
async def test_in_the_place_of_a_claims_file(
    node: Node, put: Callable[[Path], None], which: Literal["spec", "record"]
) -> None:
    """A claim that is prepared gets its file back; others are prepared, looked after, cleaned up and unprepared."""
    node.timeout = 5.0
    node.start()
    hit, other = await prepared(node, "a", "b")
    (uid,) = uids(hit)
    path = node.specs.path(uid) if which == "spec" else node.records.path(uid)
    path.unlink()
    put(path)
    recovery = node.recovery()
    await recovery.repair()
    await recovery.clean_up()
    assert uid in node.records.uids()
    assert node.limits(hit)
    later = claim("later", [result(1)], pods=["p"])
    node.api.put(later, pod("p", container("x", "later")))
    devices((await node.prepare(later))[0])
    assert await node.unprepare(hit, other, later) == [None] * 3
    assert node.records.uids() == node.specs.uids() == []


@pytest.mark.parametrize("which", ["spec", "record"])
@pytest.mark.parametrize("put", ODD, ids=lambda put: put.__name__)
async def test_in_the_place_of_a_file_to_be(
    node: Node, put: Callable[[Path], None], which: Literal["spec", "record"]
) -> None:
    """A claim is prepared though something has the name that its file is to have."""
    node.timeout = 5.0
    node.start()
    obj = claim("c", [result(1)], pods=["p"])
    node.api.put(obj, pod("p", container("x", "c")))
    (uid,) = uids(obj)
    put(node.specs.path(uid) if which == "spec" else node.records.path(uid))
    devices((await node.prepare(obj))[0])
    assert node.limits(obj)
    assert await node.unprepare(obj) == [None]
