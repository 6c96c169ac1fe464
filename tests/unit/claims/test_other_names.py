"""claims.other_names: what this program has prepared under other driver names, and nothing of anybody else's."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.claims.other_names import check_names, other_names
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.records import Records, decode

OLD = "old.example.com"


GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def prepared() -> Prepared:
    """A claim of the old name."""
    path = min(GOLDEN.rglob("*.json"))
    return replace(decode(path.read_bytes(), str(path)), driver=OLD)


def beside(plugins: Path, name: str, *claims: Prepared) -> Path:
    """A plugin directory with records."""
    records = Records(plugins / name / "claims")
    records.open()
    for claim in claims:
        records.save(claim)
    return plugins / name


def test_claims_of_another_name(tmp_path: Path, prepared: Prepared) -> None:
    """They are found by what their records say, whatever the directory is called; not those of our own name."""
    ours = beside(tmp_path, "new.example.com", replace(prepared, driver="new.example.com"))
    theirs = beside(tmp_path, "somewhere", prepared)
    beside(tmp_path, "of-ours-once", replace(prepared, driver="new.example.com"))
    (found,) = other_names(ours, "new.example.com")
    assert (found.driver, found.plugin_dir, found.claims) == (OLD, theirs, (prepared,))


def test_a_mount_beside_us_whose_server_is_gone(
    tmp_path: Path, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors that only such mounts give are no end of the daemon; what is beside it is found."""
    gone, there = beside(tmp_path, "a", prepared), beside(tmp_path, "b", prepared)
    is_dir = Path.is_dir

    def of_mount(path: Path) -> bool:
        if gone in path.parents:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", of_mount)
    assert [each.plugin_dir for each in other_names(tmp_path / "ours", "ours")] == [there]


def test_a_name_that_is_in_two_places(tmp_path: Path, prepared: Prepared) -> None:
    """One after the other: a name can be registered once."""
    first, second = beside(tmp_path, "a", prepared), beside(tmp_path, "b", prepared)
    assert [each.plugin_dir for each in other_names(tmp_path / "ours", "ours")] == [first]
    (first / "claims" / f"{prepared.uid}.json").unlink()
    assert [each.plugin_dir for each in other_names(tmp_path / "ours", "ours")] == [second]


def _damage(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"sha256", b"sha255"))


def _large(path: Path) -> None:
    os.truncate(path, 2**30)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _others(path: Path) -> None:
    path.write_text('{"claims": ["of another program"]}')


def _renamed(path: Path) -> None:
    path.rename(path.with_name("another-uid.json"))


@pytest.mark.parametrize("spoil", [_damage, _large, _fifo, _folder, _others, _renamed])
def test_what_is_no_record_of_ours(tmp_path: Path, prepared: Prepared, spoil: Callable[[Path], None]) -> None:
    """Other programs' directories, and what can't be believed, are left alone, and don't keep us."""
    directory = beside(tmp_path, "theirs", prepared)
    spoil(directory / "claims" / f"{prepared.uid}.json")
    (tmp_path / "a-file").write_text("x")
    (tmp_path / "csi").mkdir()
    (tmp_path / "csi" / "claims").write_text("a file")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    assert other_names(tmp_path / "ours", "ours") == []
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_directory_of_two_names(tmp_path: Path, prepared: Prepared) -> None:
    """Nobody could tell whose it is, so it is left alone."""
    second = replace(prepared, driver="third.example.com", ref=replace(prepared.ref, uid="second"))
    beside(tmp_path, "mixed", prepared, second)
    assert other_names(tmp_path / "ours", "ours") == []


def test_no_directory_at_all(tmp_path: Path) -> None:
    """Where there is nothing, nothing is found."""
    assert other_names(tmp_path / "none" / "ours", "ours") == []


def test_claims_of_another_name_in_our_own_directory(tmp_path: Path, prepared: Prepared) -> None:
    """They would be taken for ours: their specs written twice, and they unprepared under their pods. It is refused in words."""
    records = Records(beside(tmp_path, "ours", prepared) / "claims")
    check_names(records, OLD)
    with pytest.raises(
        StorageError, match=rf"--plugin-dir has claims that were prepared as driver {OLD}, and this is new"
    ):
        check_names(records, "new")
