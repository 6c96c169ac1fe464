"""What a bug report needs, in one file: bounded in size, and without secrets.

Of users' objects only what says what was allocated is collected: names of claims, pods and containers are in it, their
environments are not. Each part is cut to what it may have, and one that can't be had, or hangs, is named in the manifest with its
reason.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from hami_kubeletplugin import __version__, bundles, files, redaction
from hami_kubeletplugin.api.errors import HamiError, StorageError
from hami_kubeletplugin.api.fields import at
from hami_kubeletplugin.claims.specfiles import SpecFiles
from hami_kubeletplugin.doctor.cluster import Cluster
from hami_kubeletplugin.doctor.place import Place
from hami_kubeletplugin.doctor.runtimes import runtimes
from hami_kubeletplugin.findings import Finding
from hami_kubeletplugin.hanging import OwnThreads
from hami_kubeletplugin.health.kept import FILE
from hami_kubeletplugin.health.runtime_config import inside

LARGEST: Final = 1024 * 1024
"""Bytes of one part; all together some MB, packed a tenth of that."""
_FILES: Final = 256
_WITHIN: Final = 10.0
"""Seconds for one part: files may be on a file system that hangs."""
_ALTOGETHER: Final = 60.0
"""For all of them."""
_KERNEL: Final = 400
"""Lines of the kernel's log."""
_ABOUT_GPUS: Final = ("NVRM", "Xid", "nvidia", "hami", "vgpu")
_KUBELET: Final = ("/var/lib/kubelet/config.yaml", "/etc/kubernetes/kubelet/kubelet-config.json")
_KUBELETS_TABLES: Final = ("authentication", "authorization")
"""Switches and paths, no credentials."""
_OURS: Final = ("vgpu", "cdi", "nvidia", "hami")

T = TypeVar("T")
Part = tuple[str, str, Callable[[], bytes]]
"""Its name in the file, what it is, and what gives it."""


def write(target: Path, place: Place, cluster: Cluster, found: list[Finding]) -> list[str]:
    """Write the file, whole or not at all, readable for its owner alone.

    Returns:
        A line for each part: its name, and what it is, or why it isn't there.

    Raises:
        StorageError: It can't be written, or is there already.
    """
    manifest: list[str] = []
    content: dict[str, bytes] = {}
    threads = OwnThreads(most=_FILES, last_wait=0.0)
    until = time.monotonic() + _ALTOGETHER

    def had(name: str, give: Callable[[], T]) -> T | None:
        left = min(_WITHIN, until - time.monotonic())
        try:
            if left <= 0:
                raise StorageError(f"{_ALTOGETHER:g} s were over")  # noqa: TRY301 - said as whatever else keeps it out
            return threads.submit(give).result(left)
        except Exception as error:  # noqa: BLE001 - what one part comes to must not cost the others
            why = f"it did not end within {left:g} s" if isinstance(error, TimeoutError) else str(error)
            manifest.append(f"{name}: left out: {redaction.text(why)}")
            return None

    def kept(name: str, what: str, whole: bytes) -> None:
        content[name] = whole[:LARGEST]
        cut = "" if len(whole) <= LARGEST else f" (the first {LARGEST} of {len(whole)} bytes)"
        manifest.append(f"{name}: {what}{cut}")

    for group, listed in {
        "all": partial(_always, place, cluster, found),
        "records": partial(_records, place),
        "cdi": partial(_specs, place),
        "runtime": partial(_runtimes, place),
        "kubelet": partial(_kubelet, place),
    }.items():
        for name, what, give in had(group, partial(_listed, listed)) or ():
            if (whole := had(name, give)) is not None:
                kept(name, what, whole)
    content["MANIFEST"] = "\n".join(["What is in this file, and what is not:", "", *manifest, ""]).encode()
    bundles.write(target, content)
    return manifest


def _listed(parts: Callable[[], Iterator[Part]]) -> list[Part]:
    return list(parts())


def _always(place: Place, cluster: Cluster, found: list[Finding]) -> Iterator[Part]:
    settings = place.settings
    yield "doctor.json", "what doctor found", lambda: redaction.as_json([asdict(each) for each in found])
    yield "version.json", "versions of this program, of the kernel and of its user space", lambda: _version(place)
    yield "options.json", "this command's options", lambda: redaction.as_json(settings.model_dump(mode="json"))
    yield "gpus.json", "GPUs as NVML tells of them", lambda: redaction.as_json(_gpus(place))
    yield "node.json", "of the Node: info, capacity, allocatable, conditions", lambda: redaction.as_json(_node(cluster))
    yield "slices.json", "ResourceSlices of the node, of all drivers", lambda: redaction.as_json(_slices(cluster))
    yield "conditions.json", "what the daemon knows of GPUs", lambda: _json(settings.plugin_dir / FILE)
    yield "mounts.txt", "mounts of HAMi-core, CDI and the driver", lambda: _mounts(place).encode()
    yield "kernel.txt", "lines of the kernel's log about GPUs", lambda: _kernel().encode()
    yield "folders.txt", "what is in our folders: mode, owner, size, name", lambda: _folders(place).encode()


def _records(place: Place) -> Iterator[Part]:
    for uid in place.records.uids()[:_FILES]:
        what = "a claim's record: names of claim, pods and containers, limits"
        yield f"records/{uid}.json", what, partial(_raw, place.records.path(uid))


def _specs(place: Place) -> Iterator[Part]:
    specs = SpecFiles(place.settings.cdi_dir, place.settings.driver_name)
    for uid in specs.uids()[:_FILES]:
        spec = specs.path(uid)
        yield f"cdi/{spec.name}", "a claim's CDI spec", partial(_json, spec)


def _runtimes(place: Place) -> Iterator[Part]:
    for runtime in runtimes(place):
        said = {"version": runtime.version, "files": runtime.files}
        what = f"{runtime.config} and what it imports, without credentials"
        yield f"runtime/{runtime.name.lower()}.json", what, partial(redaction.as_json, said)


def _kubelet(place: Place) -> Iterator[Part]:
    for path in _KUBELET:
        here = inside(place.host, path)
        if here.is_file():
            yield f"kubelet/{here.name}.json", f"{path}, without credentials", partial(_yaml, here)


def _raw(path: Path) -> bytes:
    """A record as it is, damaged ones too: there is nothing of users in it but names."""
    return redaction.text((files.read(path) or b"")[:LARGEST].decode(errors="replace")).encode()


def _json(path: Path) -> bytes:
    content = files.read(path)
    if content is None:
        raise StorageError(f"{path} is not there")
    return redaction.as_json(json.loads(content))


def _yaml(path: Path) -> bytes:
    import yaml  # noqa: PLC0415 - costs memory, and only this needs it

    try:
        with path.open("rb") as file:
            return redaction.as_json(yaml.safe_load(file.read(LARGEST)), keep=_KUBELETS_TABLES)
    except yaml.YAMLError as error:
        raise StorageError(f"{path} is not YAML") from error


def _version(place: Place) -> bytes:
    system = os.uname()
    release = _text(inside(place.host, "/etc/os-release"))
    return redaction.as_json(
        {
            "hami-kubeletplugin": __version__,
            "kernel": f"{system.sysname} {system.release} {system.machine}",
            "os": next((line for line in release.splitlines() if line.startswith("PRETTY_NAME=")), ""),
            "driver": _text(place.proc / "driver/nvidia/version").splitlines(),
        }
    )


def _gpus(place: Place) -> Mapping[str, Any]:
    hardware = place.hardware()
    inventory = hardware.inventory
    return {
        "gpus": [{name: getattr(gpu, name) for name in gpu.__dataclass_fields__} for gpu in inventory.gpus],
        "unread": [{"uuid": each.uuid, "error": each.error} for each in inventory.unread],
        "remarks": [{"event": each.event, **dict(each.facts)} for each in hardware.remarks],
    }


def _node(cluster: Cluster) -> Mapping[str, Any]:
    node = cluster.answers().node
    if isinstance(node, HamiError):
        raise node
    fields = ("nodeInfo", "capacity", "allocatable", "conditions")
    return {"name": at(node, "metadata", "name"), **{field: at(node, "status", field) for field in fields}}


def _slices(cluster: Cluster) -> list[Any]:
    slices = cluster.answers().slices
    if isinstance(slices, HamiError):
        raise slices
    return [{"metadata": {"name": at(each, "metadata", "name")}, "spec": each.get("spec")} for each in slices]


def _mounts(place: Place) -> str:
    lines = _text(place.proc / "self/mountinfo").splitlines()
    return redaction.text("\n".join(line for line in lines if any(word in line for word in _OURS)))


def _kernel() -> str:
    """Of what the kernel keeps, the last lines about GPUs."""
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kept: list[str] = []
    try:
        for _ in range(100_000):
            try:
                line = os.read(descriptor, 8192).decode(errors="replace")
            except BlockingIOError:
                break
            except BrokenPipeError:  # that one was overwritten meanwhile
                continue
            if any(word in line for word in _ABOUT_GPUS):
                kept.append(line.rstrip("\n"))
    finally:
        os.close(descriptor)
    return redaction.text("\n".join(kept[-_KERNEL:]))


def _folders(place: Place) -> str:
    settings = place.settings
    lines = []
    for folder in (settings.hami_dir, settings.hami_dir / "lib", settings.hami_dir / "cache", settings.plugin_dir,
                   settings.registry_dir, settings.cdi_dir):  # fmt: skip
        lines.append(f"{folder}:")
        try:
            for name in islice(files.names(folder), _FILES):
                found = os.lstat(folder / name)
                lines.append(f"  {found.st_mode:06o} {found.st_uid}:{found.st_gid} {found.st_size:>10} {name}")
        except (StorageError, OSError) as error:
            lines.append(f"  {error}")
    return redaction.text("\n".join(lines))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST).decode(errors="replace")
    except OSError:
        return ""
