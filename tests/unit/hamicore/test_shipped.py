"""Which library of an image is taken."""

import hashlib
import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.hamicore.shipped import Shipped


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An empty folder."""
    path = tmp_path / "hami"
    path.mkdir()
    return path


def ship(image: Path, content: bytes, versions: dict[str, str | None], patched: str = "") -> None:
    """Put libraries there, by file name; their content differs in its end. None = not in versions.json.

    One of them may have our patches.
    """
    known = []
    for number, (name, version) in enumerate(versions.items()):
        data = content + bytes([number])
        (image / name).write_bytes(data)
        if version:
            patch = {"patch": "hami-dra-1"} if name == patched else {}
            known.append({"sha256": hashlib.sha256(data).hexdigest(), "version": version} | patch)
    (image / "versions.json").write_text(json.dumps(known))


def test_the_newest_known_one_is_taken(image: Path, built_library: bytes) -> None:
    """Numbers are compared as numbers; the broken release, unknown files, and one whose regions nobody knows, are passed over."""
    ship(
        image,
        built_library,
        {
            "libvgpu.so": None,
            "libvgpu.so.a": "2.9.0",
            "libvgpu.so.b": "v2.10.0",
            "libvgpu.so.c": "2.8.1",
            "libvgpu.so.e": "9.0.0",
            "other.so": "9",
        },
    )
    (image / "libvgpu.so.z").write_bytes(b"half")
    (image / "libvgpu.so.d").mkdir()
    with capture_logs() as log:
        library = Shipped(image).library()
    assert (library.path.name, library.release.version) == ("libvgpu.so.b", "2.10.0")
    left_out = [entry["reason"] for entry in log]
    assert [reason.split(": ")[0] for reason in left_out] == [str(image / f"libvgpu.so.{end}") for end in "cz"]
    assert library.release.layout is not None


def test_one_with_our_patches_goes_before_a_newer_one(image: Path, built_library: bytes) -> None:
    """Several GPUs' limits hold with it, whatever programs do; regions come first all the same."""
    ship(image, built_library, {"libvgpu.so.a": "2.9.0", "libvgpu.so.b": "2.10.0"}, patched="libvgpu.so.a")
    assert Shipped(image).library().path.name == "libvgpu.so.a"
    ship(image, built_library, {"libvgpu.so.a": "9.9.0", "libvgpu.so.b": "2.10.0"}, patched="libvgpu.so.a")
    assert Shipped(image).library().path.name == "libvgpu.so.b"


@pytest.mark.parametrize("wanted", ["2.9.0", "v2.9.0"])
def test_one_can_be_chosen(image: Path, built_library: bytes, wanted: str) -> None:
    """By its version; versions that are not there are named."""
    ship(image, built_library, {"libvgpu.so.a": "2.9.0", "libvgpu.so.b": "2.10.0"})
    assert Shipped(image, wanted).library().path.name == "libvgpu.so.a"
    with pytest.raises(StorageError, match=r"in version 2\.7\.1 .*libvgpu\.so\.a is version 2\.9\.0.*--hami-core"):
        Shipped(image, "2.7.1").library()


def test_a_single_one_is_taken_known_or_not(image: Path, built_library: bytes) -> None:
    """A folder with one library, or the path of one; versions.json is beside it."""
    ship(image, built_library, {"libvgpu.so": None})
    assert Shipped(image).library() == Shipped(image / "libvgpu.so").library()
    assert Shipped(image).library().release.version is None
    ship(image, built_library, {"libvgpu.so": "2.10.0"})
    assert Shipped(image / "libvgpu.so").library().release.version == "2.10.0"


def test_among_several_unknown_ones_nobody_guesses(image: Path, built_library: bytes) -> None:
    """The refusal names them and what to do."""
    ship(image, built_library, {"libvgpu.so.a": None, "libvgpu.so.b": None})
    with pytest.raises(StorageError, match=r"libvgpu\.so\.a, libvgpu\.so\.b.*name one by --hami-core"):
        Shipped(image).library()


def test_the_broken_release_alone_is_refused_by_name(image: Path, built_library: bytes) -> None:
    """No container starts with it."""
    ship(image, built_library, {"libvgpu.so": "2.8.1"})
    with pytest.raises(StorageError, match=r"libvgpu\.so: it is HAMi-core 2\.8\.1.*unlimited"):
        Shipped(image).library()


def test_nothing_there_is_said(image: Path) -> None:
    """An empty folder, or none."""
    for path in (image, image / "no"):
        with pytest.raises(StorageError, match=str(path)):
            Shipped(path).library()


def test_a_hook_must_be_whole(image: Path, hook: Path) -> None:
    """Else it is said why there is none, with the option to look at."""
    assert Shipped(image, region_hook=hook).hook() == hook.read_bytes()
    hook.write_bytes(hook.read_bytes()[:1000])
    for path, reason in ((hook, "cut short"), (image / "no", "No such file")):
        said = Shipped(image, region_hook=path).hook()
        assert isinstance(said, str)
        assert str(path) in said
        assert reason in said
        assert "--region-hook" in said
