"""No container starts whose library, or what has it loaded, is not what the driver installed: it would run without limits."""

import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.hamicore.hook import CLAIM, POD, Use, call, state

CONTENT = bytes(range(256)) * 4000 + b"end"


@pytest.fixture(params=["shipped", "sanitized"])
def use(request: pytest.FixtureRequest, native: Path, sanitized_hook: Path, tmp_path: Path) -> Use:
    """A region, and the program as shipped or as it looks for its own faults."""
    return Use(tmp_path, sanitized_hook if request.param == "sanitized" else native / "hami-region-hook")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A file as it was installed."""
    path = tmp_path / "libvgpu.so.0123"
    path.write_bytes(CONTENT)
    path.chmod(0o755)
    return path


def word(path: Path, content: bytes = CONTENT) -> str:
    """What the hook is told of a file."""
    return f"{zlib.adler32(content):08x}:{len(content)}:{path}"


def folder(path: Path) -> None:
    """In the file's place."""
    path.unlink()
    path.mkdir()


def link(path: Path) -> None:
    """To the same content."""
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def fifo(path: Path) -> None:
    """Nobody is at its other end."""
    path.unlink()
    os.mkfifo(path)


HARM: dict[str, tuple[Callable[[Path], object], str]] = {
    "deleted": (Path.unlink, "No such file"),
    "emptied": (lambda path: os.truncate(path, 0), "it is cut short"),
    "cut": (lambda path: os.truncate(path, len(CONTENT) - 1), "it is cut short"),
    "longer": (lambda path: os.truncate(path, len(CONTENT) + 1), "it is too long"),
    "first byte": (lambda path: path.write_bytes(b"\1" + CONTENT[1:]), "its content is another one"),
    "last byte": (lambda path: path.write_bytes(CONTENT[:-1] + b"D"), "its content is another one"),
    "another": (lambda path: path.write_bytes(bytes(len(CONTENT))), "its content is another one"),
    "for root alone": (lambda path: path.chmod(0o750), "not everybody may read it"),
    "folder": (folder, "it is no regular file"),
    "link": (link, "Too many levels of symbolic links"),
    "fifo": (fifo, "it is no regular file"),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_file_that_was_changed_starts_nothing(use: Use, library: Path, harm: str) -> None:
    """The message names claim, file, what is wrong and what to do; the region stays, and once it is back all goes on."""
    change, reason = HARM[harm]
    words = [*use.arguments(), "--file", word(library)]
    before = use.region.read_bytes()
    change(library)
    ended = call(words, state())
    assert ended.status == 1
    for part in (
        f"claim {CLAIM}: {library} on the node is not as the driver installed it: {reason}",
        "daemon",
        "its log",
    ):
        assert part in ended.message
    assert use.region.read_bytes() == before
    library.rmdir() if library.is_dir() and not library.is_symlink() else library.unlink(missing_ok=True)
    library.write_bytes(CONTENT)
    library.chmod(0o755)
    assert call(words, state()).status == 0
    assert use.is_renewed()


def test_every_file_counts(use: Use, library: Path, tmp_path: Path) -> None:
    """The library, and the file that has it loaded."""
    preload = tmp_path / "ld.so.preload"
    preload.write_bytes(b"/usr/local/vgpu/libvgpu.so\n")
    words = [*use.arguments(), "--file", word(library), "--file", word(preload, preload.read_bytes())]
    assert call(words, state()).status == 0
    preload.write_bytes(b"# /usr/local/vgpu/libvgpu\n")
    assert str(preload) in call(words, state()).message


def test_files_are_looked_at_without_a_region(use: Use, library: Path) -> None:
    """As for containers that may run at the same time, whose pods nobody knows."""
    before = use.region.read_bytes()
    words = [str(use.program), "--file", word(library), "--claim", CLAIM]
    assert call(words, state(**{"io.kubernetes.pod.uid": POD})).status == 0
    library.unlink()
    assert call(words, state()).status == 1
    assert use.region.read_bytes() == before


def test_specs_of_former_versions_go_on(use: Use) -> None:
    """They name no file."""
    assert use.run().status == 0


@given(st.one_of(st.binary(max_size=40), st.integers(0, 200_000).map(lambda size: CONTENT[:size])))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_content_is_recognised(use: Use, library: Path, content: bytes) -> None:
    """Of any size, to the last byte."""
    library.write_bytes(content)
    words = [str(use.program), "--file", word(library, content), "--claim", CLAIM]
    assert call(words, state()).status == 0
    if content:
        library.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert call(words, state()).status == 1


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "0123abcd",
        "0123abcd:5",
        "0123abcd:5:",
        "0123abcd:5:x",
        "0123abcd::/x",
        "0123abcd:-5:/x",
        "123:5:/x",
        ":5:/x",
        "0123abcde:5:/x",
    ],
)
def test_words_that_are_none_are_refused(use: Use, text: str) -> None:
    """Nothing is taken for right that isn't understood."""
    before = use.region.read_bytes()
    ended = call([*use.arguments(), "--file", text], state())
    assert ended.status == 1
    assert f"can't use {text} here" in ended.message
    assert use.region.read_bytes() == before
