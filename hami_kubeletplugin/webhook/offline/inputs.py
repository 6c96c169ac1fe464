"""What `convert` needs from outside: files, and what GPUs there are."""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.errors import AdmissionError, HamiError, SettingsError
from hami_kubeletplugin.api.quoting import quoted
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.fleet import Kind, Node
from hami_kubeletplugin.webhook.conversion.template import GpuSize

if TYPE_CHECKING:
    from hami_kubeletplugin.webhook.cluster.sizes import Sizes

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


class Gpus:
    """The GPUs that are named by `--gpu-memory`, else those of a cluster, which is asked once, when a container asks for GPUs.

    Args:
        listed: What people say with `--gpu-memory`.
        kubeconfig: The cluster, for a person; None: there is none to ask.
        context: Of the kubeconfig; None: its current one.
        rules: Names.

    Raises:
        SettingsError: As for `memory_sizes`.
    """

    def __init__(self, listed: str | None, kubeconfig: str | None, context: str | None, rules: Conversion) -> None:
        self._named, self._rules = memory_sizes(listed), rules
        self._kubeconfig, self._context = kubeconfig, context
        self._asked: Sizes | None = None
        self.trouble: HamiError | None = None
        """Why the cluster could not be asked."""

    def sizes(self) -> Sequence[GpuSize]:
        """The memory sizes, for percentages.

        Raises:
            AdmissionError: None are named, nor a cluster.
            HamiError: The cluster can't be asked.
        """
        if self._named:
            return self._named
        if self._kubeconfig is None:
            raise AdmissionError(
                f"{self._rules.resource_memory_percentage_name} needs the memory sizes of the cluster's GPUs: name them, in MiB, "
                "with --gpu-memory 40960,81920, or the cluster with --kubeconfig FILE"
            )
        return self._cluster(self._kubeconfig).known()

    @property
    def nodes(self) -> frozenset[Node]:
        """See `fleet.Fleet`; of named sizes a node may have as many GPUs as can be asked for."""
        if self._named:
            return frozenset(
                [tuple((Kind(None, size.memory_mib), names.MAX_GPUS_PER_CONTAINER) for size in self._named)]
            )
        try:
            return self._cluster(self._kubeconfig).nodes if self._kubeconfig else frozenset()
        except HamiError:
            return frozenset()

    def has(self, uuid: str) -> bool:
        """See `fleet.Fleet`."""
        return self._asked is None or self._asked.has(uuid)

    def _cluster(self, kubeconfig: str) -> "Sizes":
        if self.trouble:
            raise self.trouble
        if self._asked is None:
            try:
                self._asked = _ask(kubeconfig, self._context, self._rules.driver_name)
            except HamiError as error:
                self.trouble = error
                raise
        return self._asked


def _ask(kubeconfig: str, context: str | None, driver: str) -> "Sizes":
    from hami_kubeletplugin.kube.call import Call  # noqa: PLC0415 - most conversions need no cluster
    from hami_kubeletplugin.kube.people import PeoplesClient  # noqa: PLC0415
    from hami_kubeletplugin.kube.resource_api import Listed  # noqa: PLC0415
    from hami_kubeletplugin.webhook.cluster.sizes import Sizes, seen  # noqa: PLC0415

    query = {"fieldSelector": f"spec.driver={driver}"}
    call = Call("list", "resourceslices.resource.k8s.io", "/apis/resource.k8s.io/v1/resourceslices", query=query)
    cluster = Sizes()
    with PeoplesClient.of(kubeconfig, context) as client:
        cluster.replace(Listed([seen(each) for each in client.all(call)], ""))
    return cluster
