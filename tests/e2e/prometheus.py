"""A real Prometheus beside the cluster, that scrapes daemon and webhook and evaluates our rules."""

import json
import os
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.cluster import REPOSITORY
from tests.monitoring.reading import groups
from tests.waiting import wait_for

ADDRESS = "127.0.0.1"
Labels = Mapping[str, str]


def free_port() -> int:
    """A free one."""
    with socket.socket() as unused:
        unused.bind((ADDRESS, 0))
        number: int = unused.getsockname()[1]
        return number


def job(name: str, port: int, labels: Labels, **more: Any) -> dict[str, Any]:
    """What is scraped, with labels as a PodMonitor gives them to its targets."""
    target = {"targets": [f"{ADDRESS}:{port}"], "labels": dict(labels)}
    return {"job_name": name, "honor_labels": True, "static_configs": [target], **more}


class Prometheus:
    """One process, from start to `stop`.

    Args:
        folder: For its data, which are gone afterwards with the folder.
        jobs: What it scrapes, each second.
        mark: Makes hack/cluster/down end it with the cluster.
    """

    def __init__(self, folder: Path, jobs: Iterable[dict[str, Any]], mark: str) -> None:
        subprocess.run([REPOSITORY / "hack" / "prometheus"], check=True, timeout=900)
        (folder / "rules.yaml").write_text(yaml.safe_dump(groups()))
        every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        config = {"global": every, "rule_files": ["rules.yaml"], "scrape_configs": [*jobs]}
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self._port, self._log = free_port(), folder / "prometheus.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    REPOSITORY / "build" / "prometheus" / "prometheus",
                    f"--config.file={folder / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={ADDRESS}:{self._port}",
                ],
                env={"PATH": os.environ["PATH"], "CLUSTER_MARK": mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,
            )

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(10)

    def scraped(self) -> None:
        """Wait until it has got pages from all that it scrapes."""

        def probe() -> bool:
            targets = self._get("targets", state="active")["activeTargets"]
            health = {each["labels"]["job"]: each["health"] for each in targets}
            assert set(health.values()) == {"up"}, [each["lastError"] for each in targets]
            return True

        wait_for("Prometheus to scrape all", probe, timeout=30)

    def query(self, expression: str) -> list[tuple[Labels, float]]:
        """Labels and values of what a query gives now.

        Raises:
            AssertionError: Prometheus refuses it; its words.
        """
        result = self._get("query", query=expression)["result"]
        return [(each["metric"], float(each["value"][1])) for each in result]

    def _get(self, path: str, **words: str) -> Any:
        assert self._process.poll() is None, f"Prometheus ended:\n{self._log.read_text()}"
        url = f"http://{ADDRESS}:{self._port}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{words}: {error.read().decode()}") from error
        except OSError as error:
            raise AssertionError(f"Prometheus does not answer: {error}") from error
