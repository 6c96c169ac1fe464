"""What `convert` needs from outside: files, and the memory sizes of GPUs."""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from hami_kubeletplugin.api.errors import AdmissionError, SettingsError
from hami_kubeletplugin.api.quoting import quoted
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.template import GpuSize, SizeLookup

STDIN: Final = "-"
_MIB: Final = re.compile(r"[1-9][0-9]{0,8}")


def read_files(paths: Iterable[str]) -> dict[str, str]:
    """The text of each file, once; `-` is the standard input.

    Raises:
        SettingsError: One can't be read, or is not UTF-8.
    """
    texts: dict[str, str] = {}
    for path in paths:
        name = "standard input" if path == STDIN else path
        if name in texts:  # the standard input would be empty the second time
            continue
        try:
            data = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
            texts[name] = data.decode()
        except IsADirectoryError:
            raise SettingsError(f"-f {path} is a folder: {_rendered(Path(path))}") from None
        except OSError as error:
            raise SettingsError(f"-f {path} can't be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise SettingsError(f"{name} is not UTF-8: byte {error.start} is {data[error.start]:#04x}") from None
    return texts


def _rendered(folder: Path) -> str:
    """How to make one file of a folder."""
    if (folder / "Chart.yaml").exists():
        return f"render it first, helm template {folder} | hami-webhook convert -f -"
    if any((folder / name).exists() for name in ("kustomization.yaml", "kustomization.yml", "Kustomization")):
        return f"render it first, kubectl kustomize {folder} | hami-webhook convert -f -"
    return "name its files, each with -f"


def memory_sizes(listed: str | None) -> Sequence[GpuSize]:
    """The sizes that people name with `--gpu-memory`, of GPUs whose model is not known.

    Raises:
        SettingsError: Not whole numbers of MiB, separated by commas.
    """
    words = [word.strip() for word in (listed or "").split(",") if word.strip()]
    if not all(map(_MIB.fullmatch, words)):
        raise SettingsError(
            f"--gpu-memory: must be MiB, separated by commas, such as 40960,81920; got {quoted(listed)}"
        )
    return [GpuSize(None, int(word)) for word in words]


def sizes(listed: str | None, kubeconfig: Path | None, rules: Conversion) -> SizeLookup:
    """Where the sizes come from: `--gpu-memory`, else the cluster, which is asked once and only if there is a percentage.

    Raises:
        SettingsError: As for `memory_sizes`.
    """
    named = memory_sizes(listed)
    asked: list[Sequence[GpuSize]] = []

    def known() -> Sequence[GpuSize]:
        if named:
            return named
        if kubeconfig is None:
            raise AdmissionError(
                f"{rules.resource_memory_percentage_name} needs the memory sizes of the cluster's GPUs: name them, in MiB, with "
                "--gpu-memory 40960,81920, or the cluster with --kubeconfig FILE"
            )
        if not asked:
            asked.append(_of_cluster(kubeconfig, rules.driver_name))
        return asked[0]

    return known


def _of_cluster(kubeconfig: Path, driver: str) -> Sequence[GpuSize]:
    import asyncio  # noqa: PLC0415 - these cost start-up time, and most conversions need no cluster

    from hami_kubeletplugin.kube.config import load  # noqa: PLC0415
    from hami_kubeletplugin.kube.resource_api import KubeClient  # noqa: PLC0415
    from hami_kubeletplugin.webhook.cluster.sizes import PublishedSizes  # noqa: PLC0415

    async def ask() -> Sequence[GpuSize]:
        async with KubeClient(load(kubeconfig)) as client:
            cluster = PublishedSizes(client, driver)
            cluster.replace(await cluster.listed())
            return cluster.known()

    return asyncio.run(ask())
