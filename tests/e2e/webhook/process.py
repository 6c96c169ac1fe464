"""The real webhook as a process on the node, which starts in a moment and needs no image; as pods: tests/e2e/pods."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import CHECKOUT
from tests.waiting import wait_for

ADDRESS = "127.0.0.1"


class Webhook:
    """One `hami-webhook run` after another, on one port.

    Args:
        folder: For logs.
        kubeconfig: With the rights of the Deployment.
        port: To listen on.
        mark: Makes hack/cluster/down end it with the cluster.
    """

    def __init__(self, folder: Path, kubeconfig: Path, port: int, mark: str) -> None:
        self._folder, self._kubeconfig, self._mark = folder, kubeconfig, mark
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0

    # --- life ---

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self, *options: str) -> None:
        """Start it, and wait until it is ready."""
        assert not self.is_running, "the webhook runs already"
        self._process = self._spawn(options)
        wait_for("the webhook to be ready", lambda: self._alive() and self.get("/readyz") == "ok\n", timeout=30)

    def replace(self, *options: str) -> int:
        """Update it: a second process takes over the port, then the first one ends; returns the first one's exit status."""
        first, self._process = self._process, self._spawn(options)
        assert first is not None, "the webhook was never started"
        wait_for("the second webhook to be ready", lambda: self._alive() and self._both_ready(), timeout=30)
        first.send_signal(signal.SIGTERM)
        return first.wait(40)

    def another(self) -> "Webhook":
        """A replica, not started, on a port of its own."""
        with socket.socket() as unused:
            unused.bind((ADDRESS, 0))
            port = unused.getsockname()[1]
        folder = self._folder / f"replica-{port}"
        folder.mkdir()
        return Webhook(folder, self._kubeconfig, port, self._mark)

    def tell(self, number: signal.Signals) -> None:
        """Send a signal and go on."""
        assert self._process is not None, "the webhook was never started"
        self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it; returns its exit status, negative for a signal."""
        assert self._process is not None, "the webhook was never started"
        self._process.send_signal(number)
        return self._process.wait(40)

    def kill(self) -> None:
        """End it as the kernel's OOM killer would."""
        self.stop(signal.SIGKILL)

    def _spawn(self, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
        self._started += 1
        with self._log_file.open("wb") as log:
            return subprocess.Popen(
                [
                    *(Path(sys.executable).parent / "hami-webhook", "run"),
                    *("--listen", ADDRESS, "--port", str(self.port), "--tls-hosts", ADDRESS),
                    # There is no Service that has to hear of its end.
                    *("--drain-delay", "1", "--idle-grace", "1"),
                    *options,
                ],
                env={
                    **CHECKOUT,
                    "PATH": os.environ["PATH"],
                    "KUBECONFIG": str(self._kubeconfig),
                    "CLUSTER_MARK": self._mark,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )

    def _alive(self) -> bool:
        if not self.is_running:
            raise RuntimeError(f"the webhook ended:\n{self.log_tail()}")
        return True

    # --- what it says ---

    def get(self, path: str) -> str:
        """The answer to a GET; empty if there is none."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with urllib.request.urlopen(f"https://{ADDRESS}:{self.port}{path}", timeout=5, context=context) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError):
            return ""

    def certificate(self) -> str:
        """PEM of what it serves."""
        return ssl.get_server_certificate((ADDRESS, self.port))

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's values over all labels that are not given."""
        text = self.get("/metrics")
        assert text, "no metrics"
        total = 0.0
        for line in text.splitlines():
            found = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
            if found and labels.items() <= dict(re.findall(r'(\w+)="([^"]*)"', found[1] or "")).items():
                total += float(found[2])
        return total

    def log(self) -> Iterator[dict[str, Any]]:
        """Entries that the present process has logged."""
        for line in self._log_file.read_text().splitlines():
            if line.startswith("{"):
                yield json.loads(line)

    def log_tail(self, lines: int = 40) -> str:
        """The end of the log, for messages."""
        return "\n".join(self._log_file.read_text().splitlines()[-lines:])

    def _both_ready(self) -> bool:
        # They serve one port, and the kernel gives a connection to the one or the other by chance.
        listening = any(entry["event"] == "listening" for entry in self.log())
        return listening and all(self.get("/readyz") == "ok\n" for _ in range(16))

    @property
    def _log_file(self) -> Path:
        return self._folder / f"webhook-{self._started}.log"
