"""What prepared claims leave on the node is for nobody there but root, though containers of any uid use it."""

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.hamicore.shipped import Shipped
from tests.other_user import achieved
from tests.unit.claims.node import Api, Node, prepared

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")


@pytest.fixture
def node(shipped: Shipped, api: Api) -> Iterator[Node]:
    """A node in folders that anybody may enter, as those of hosts are."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        yield Node(root / "node", shipped, api)


@pytest.mark.parametrize("former", [False, True], ids=["new", "made by a former version"])
async def test_other_users_can_do_nothing_with_a_claims_files(node: Node, former: bool) -> None:
    """Regions, caches and specs can be neither read, written, listed nor run, where a start finds them open to all too."""
    (obj,) = await prepared(node, "a")
    folder, spec = node.hami / "cache", node.specs.path(obj["metadata"]["uid"])
    own = folder / obj["metadata"]["uid"]
    program = next(path for path in own.iterdir() if path.name.startswith("use-"))
    if program.is_dir():
        program /= "left by a container"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o6777)
    paths = (node.hami, folder, own, program.parent, program, spec)
    assert achieved(*paths) == []
    if former:
        for path, mode in ((node.hami, 0o755), (folder, 0o711), (own, 0o711), (spec, 0o644)):
            path.chmod(mode)
        assert {f"read {spec}", f"written {program}", f"run {program}"} <= set(achieved(*paths)), "the test can tell"
        node.start()
        assert achieved(*paths) == []


async def test_a_spec_that_can_not_be_closed_is_named(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start says which one and why, since others can read it still."""
    (obj,) = await prepared(node, "a")
    path = node.specs.path(obj["metadata"]["uid"])

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refused)
    with pytest.raises(
        StorageError, match=rf"{path}: its mode can't be changed: Operation not permitted; .* immutable"
    ):
        node.start()
