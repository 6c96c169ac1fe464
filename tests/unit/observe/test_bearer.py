"""observe.bearer: a token in a file that others write."""

# ruff: noqa: ASYNC240 - the files are small and local

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.api.errors import SettingsError
from hami_kubeletplugin.observe.bearer import TokenFile

TOKEN = "0123456789abcdef"
OTHER = "fedcba9876543210"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Holds TOKEN, and a newline as editors and `echo` write it."""
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer  {TOKEN} ", True),
        (f"Basic {TOKEN}", False),
        (f"Bearer {OTHER}", False),
        (f"Bearer {TOKEN[:-1]}", False),
        (f"Bearer {TOKEN}\udcff", False),
        ("Bearer é", False),
        ("Bearer ", False),
        (TOKEN, False),
        ("", False),
    ],
)
async def test_who_is_allowed(file: Path, header: str, allowed: bool) -> None:
    """Who sends the token as a bearer token, and nobody else, whatever bytes he sends."""
    token = TokenFile(file)
    await token.start()
    assert token.allows(header) is allowed


async def test_nobody_is_allowed_before_it_is_read(file: Path) -> None:
    """An empty token is no token."""
    assert not TokenFile(file).allows("Bearer ")


async def test_a_changed_token(file: Path) -> None:
    """The new one is used, and the old one no more; what can't be used is logged once, and the one before stays."""
    token = TokenFile(file)
    await token.start()
    file.write_text(OTHER)
    with capture_logs() as logs:
        await token.check()
        assert (token.allows(f"Bearer {OTHER}"), token.allows(f"Bearer {TOKEN}")) == (True, False)
        file.unlink()
        await token.check()
        await token.check()
        assert token.allows(f"Bearer {OTHER}")
    assert [line["event"] for line in logs] == [
        "changed token is used",
        "changed token is not used, the one before is",
    ]
    assert OTHER not in str(logs)


@pytest.mark.parametrize("content", [b"", b"\n", b"short", b"two tokens of some length", b"x" * 4001, b"\xff" * 20])
async def test_what_is_no_token(file: Path, content: bytes) -> None:
    """Says which file, and what it must hold; not what it holds."""
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=f"^--metrics-token-file {file}: must hold one token of 16 to 4000 letters"):
        await TokenFile(file).start()


async def test_a_missing_file(tmp_path: Path) -> None:
    """Says which, and why."""
    with pytest.raises(SettingsError, match=r"--metrics-token-file .*/none: can't be read: No such file"):
        await TokenFile(tmp_path / "none").start()
