"""Whether a node's NVIDIA runtime gives containers GPUs that no claim gave them."""

import os
from pathlib import Path

import pytest

from hami_kubeletplugin.inforce.runtime import SETTING, host_root, open_configs

PACKAGES = "etc/nvidia-container-runtime/config.toml"
OPERATORS = "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
# As nvidia-ctk writes it, whose defaults are comments.
WRITTEN = f'#{SETTING} = true\ndisabled = false\n\n[nvidia-container-runtime]\nmode = "auto"\n'


def put(root: Path, name: str, text: str) -> None:
    """A configuration on the host."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (WRITTEN, [f"/{PACKAGES}"]),
        ("", [f"/{PACKAGES}"]),
        (f"{SETTING} = true\n{WRITTEN}", [f"/{PACKAGES}"]),
        (f"{SETTING} = false\n{WRITTEN}", []),
        (f"{WRITTEN}{SETTING} = false\n", [f"/{PACKAGES}"]),  # of another table
        ("torn [", None),
        ("[" * 100_000, None),
    ],
)
def test_what_a_configuration_allows(tmp_path: Path, text: str, found: list[str] | None) -> None:
    """It is open unless it says otherwise, as the runtime takes it; what can't be understood is nothing known."""
    put(tmp_path, PACKAGES, text)
    assert open_configs(tmp_path) == found


def test_each_configuration_counts(tmp_path: Path) -> None:
    """A node may have the packages' and the operator's, of which only one is closed; or none at all."""
    assert open_configs(tmp_path) is None
    put(tmp_path, PACKAGES, f"{SETTING} = false\n")
    put(tmp_path, OPERATORS, WRITTEN)
    assert open_configs(tmp_path) == [f"/{OPERATORS}"]


@pytest.mark.parametrize("kind", ["fifo", "directory", "bytes"])
def test_odd_things_under_its_name(tmp_path: Path, kind: str) -> None:
    """They are no configuration, and nobody waits for them."""
    put(tmp_path, PACKAGES, "")
    path = tmp_path / PACKAGES
    if kind == "bytes":
        path.write_bytes(b"\xff\xfe")
    else:
        path.unlink()
        os.mkfifo(path) if kind == "fifo" else path.mkdir()
    assert open_configs(tmp_path) is None


@pytest.mark.parametrize(
    ("driver", "host", "root"),
    [
        ("/driver-root", "/", "/driver-root"),
        ("/driver-root/run/nvidia/driver", "/run/nvidia/driver", "/driver-root"),
        ("/", None, "/"),
        ("/run/nvidia/driver", None, "/"),
        ("/driver-root", "/opt/driver", "/driver-root"),
    ],
)
def test_where_the_hosts_root_is(driver: str, host: str | None, root: str) -> None:
    """It follows from where the driver's is, here and there."""
    assert host_root(Path(driver), Path(host) if host else None) == Path(root)
