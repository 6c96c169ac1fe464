"""The real daemon as a process on the node, started as root would start it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import CHECKOUT
from tests.e2e.cluster import NODE
from tests.unit.gpu.fake_node import FakeNode
from tests.waiting import wait_for

DRIVER = "gpu.hami.io"
KUBELET_ROOT = Path("/var/lib/kubelet")
CDI_DIR = Path("/var/run/cdi")


def share(folder: Path) -> None:
    """Have what the daemon mounts in a folder be seen by others, as on nodes with systemd, which shares the whole root."""
    folder.mkdir(exist_ok=True)
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    if not any(line.split()[4] == str(folder) for line in mounts):
        subprocess.run(["mount", "--bind", folder, folder], check=True, timeout=10)
        subprocess.run(["mount", "--make-shared", folder], check=True, timeout=10)


class Daemon:
    """One `hami-kubeletplugin run`.

    Args:
        folder: For what a node keeps elsewhere: HAMi-core's files, boot id, log.
        library: The libvgpu.so that the image would ship; the hook that renews regions lies beside it.
        kubeconfig: The daemon's own, with the rights of the DaemonSet.
    """

    def __init__(self, folder: Path, library: Path, kubeconfig: Path) -> None:
        self.folder, self._library, self._kubeconfig = folder, library, kubeconfig
        self.hami_dir = folder / "vgpu"
        self.plugin_dir = KUBELET_ROOT / "plugins" / DRIVER
        self.boot_id_file = folder / "boot_id"
        self.boot_id_file.write_text("boot-1\n")
        self.log_file = folder / "daemon.log"
        self.log_file.touch()
        self.simulate = "mixed"
        self.nvml: FakeNode | None = None
        """Whose GPUs it has, if none are simulated."""
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    # --- life ---

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self, *options: str, registered: bool = True) -> None:
        """Start it, and unless told otherwise wait until the kubelet has it registered."""
        assert not self.is_running, "the daemon runs already"
        share(self.hami_dir)
        self._log_start = self.log_file.stat().st_size
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    Path(sys.executable).parent / "hami-kubeletplugin",
                    "run",
                    *(self.nvml.options if self.nvml else ("--simulate", self.simulate)),
                    *("--driver-edits", "none"),
                    *("--hami-dir", self.hami_dir, "--boot-id-file", self.boot_id_file, "--hami-core", self._library),
                    *("--region-hook", self._library.with_name("hami-region-hook")),
                    *options,
                ],
                env={
                    **CHECKOUT,
                    **(self.nvml.environment if self.nvml else {}),
                    "PATH": os.environ["PATH"],
                    "NODE_NAME": NODE,
                    "KUBECONFIG": str(self._kubeconfig),
                    # It is part of the node: gone when hack/cluster/control halts it.
                    "CLUSTER_MARK": str(self.folder.parent),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        if registered:
            self.wait_registered()

    def wait_registered(self, timeout: float = 30) -> None:
        """Wait until the kubelet has told this process that it is registered."""

        def probe() -> bool:
            if not self.is_running:
                raise RuntimeError(f"the daemon ended:\n{self.log_tail()}")
            return any(entry["event"] == "registered with the kubelet" for entry in self.log())

        wait_for("the daemon to be registered with the kubelet", probe, timeout=timeout, interval=0.05)

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout: float = 15) -> int:
        """End it; returns its exit status, negative for a signal."""
        assert self._process is not None, "the daemon was never started"
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self._process.wait(timeout)

    def kill(self) -> None:
        """End it as the kernel's OOM killer would."""
        self.stop(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal and go on."""
        assert self._process is not None, "the daemon was never started"
        self._process.send_signal(number)

    def restart(self) -> None:
        """Stop it orderly and start it again."""
        assert self.stop() == 0, f"exit status of the daemon\n{self.log_tail()}"
        self.start()

    def replace(self, *options: str) -> int:
        """Update it: a second one stands by, then the first one ends; returns the first one's exit status."""
        first, self._process = self._process, None
        assert first is not None, "the daemon was never started"
        self.start(*options, registered=False)
        wait_for("the second daemon to stand by", lambda: any(e["event"] == "standing by" for e in self.log()))
        first.send_signal(signal.SIGTERM)
        status = first.wait(20)
        wait_for("the second daemon to serve", lambda: any(e["event"] == "starting" for e in self.log()))
        return status

    # --- what it says ---

    def log(self) -> Iterator[dict[str, Any]]:
        """Entries that the present process has logged."""
        with self.log_file.open("rb") as file:
            file.seek(self._log_start)
            for line in file.read().splitlines():
                if line.startswith(b"{"):
                    yield json.loads(line)

    def log_tail(self, lines: int = 40) -> str:
        """The end of the log, for messages."""
        return "\n".join(self.log_file.read_text().splitlines()[-lines:])

    # --- what it keeps on the node ---

    def spec(self, uid: str) -> dict[str, Any] | None:
        """The CDI spec of a claim."""
        for path in CDI_DIR.glob(f"*{uid}*.json"):
            spec: dict[str, Any] = json.loads(path.read_text())
            return spec
        return None

    def claims(self, *options: str) -> str:
        """What `hami-kubeletplugin claims` prints."""
        return self._command("claims", *options)

    def devices(self, *options: str) -> str:
        """What `hami-kubeletplugin devices` prints."""
        return self._command("devices", *(self.nvml.options if self.nvml else ("--simulate", self.simulate)), *options)

    def top(self) -> dict[str, Any]:
        """What `hami-kubeletplugin top` tells programs."""
        hardware = self.nvml.options if self.nvml else ("--simulate", self.simulate, "--node-name", NODE)
        found: dict[str, Any] = json.loads(
            self._command("top", "-o", "json", "--hami-dir", str(self.hami_dir), *hardware)
        )
        return found

    def _command(self, *words: str) -> str:
        command = [str(Path(sys.executable).parent / "hami-kubeletplugin"), *words]
        environment = {**os.environ, **CHECKOUT, **(self.nvml.environment if self.nvml else {})}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, timeout=30, text=True)
        return done.stdout

    def traces(self) -> dict[str, list[str]]:
        """What is on the node because of claims: CDI specs, records, caches. Empty lists when no claim is prepared."""
        return {
            "specs": sorted(path.name for path in CDI_DIR.glob("*")),
            "records": sorted(path.name for path in (self.plugin_dir / "claims").glob("*")),
            "caches": sorted(path.name for path in (self.hami_dir / "cache").glob("*")),
        }
