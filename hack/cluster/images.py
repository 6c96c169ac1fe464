"""Build the small OCI images that the cluster's tests run, from files of this machine, without a registry.

    images.py OUTPUT_DIR

Makes localhost/pause:1 (the pod sandbox), localhost/busybox:1, localhost/glibc:1 (a dynamically linked shell and coreutils, so
that /etc/ld.so.preload takes effect in it), localhost/variables:1, the same with variables that break HAMi-core's limits, and
my/cuda-program:1, the same under the name that our examples have for the user's own program; it waits. Load each with
`ctr -n k8s.io images import FILE`.
"""

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PASSWD = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
GLIBC_PROGRAMS = (
    "bash",
    "cat",
    "chmod",
    "cp",
    "env",
    "grep",
    "id",
    "ls",
    "mkdir",
    "mv",
    "od",
    "rm",
    "sleep",
    "sort",
    "stat",
    "touch",
)
VARIABLES = ("CUDA_VISIBLE_DEVICES=1", "GPU_CORE_UTILIZATION_POLICY=disable", "CUDA_REDIRECT=/lib/libcuda.so.1")
EXAMPLE = ["sh", "-c", "trap exit TERM; sleep infinity & wait"]
"""A shell that waits goes at once when it is told to; `sleep` as the first process would not."""
PAUSE = """\
#include <signal.h>
#include <unistd.h>
static void quit(int signal) { _exit(0); }
int main(void) { signal(SIGTERM, quit); signal(SIGINT, quit); for (;;) pause(); }
"""


def _layer(files: Mapping[str, bytes | str], links: Mapping[str, str]) -> bytes:
    """One tar layer: `files` maps a path to its bytes or to a host path, `links` a path to what it points at."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        folders = {str(p) for path in [*files, *links] for p in Path(path).parents if str(p) != "."}
        for folder in sorted(folders):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(info)
        for path, source in sorted(files.items()):
            data = source if isinstance(source, bytes) else Path(source).read_bytes()
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(data), 0o755
            tar.addfile(info, io.BytesIO(data))
        for path, target in sorted(links.items()):
            info = tarfile.TarInfo(path)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return out.getvalue()


def write_image(
    folder: Path,
    name: str,
    command: list[str],
    files: Mapping[str, bytes | str],
    links: Mapping[str, str],
    *,
    env: Sequence[str] = (),
) -> None:
    """Write `name` as a docker archive into `folder`; the same content gives the same bytes."""
    layer = _layer(files, links)
    config = json.dumps(
        {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {"Cmd": command, "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", *env]},
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
            "history": [{"created_by": "images.py"}],
        }
    ).encode()
    config_name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    target = folder / (name.replace("/", "_").replace(":", "_") + ".tar")
    unfinished = target.with_suffix(".unfinished")
    with tarfile.open(unfinished, "w") as tar:
        for member, data in ((config_name, config), ("layer.tar", layer), ("manifest.json", manifest)):
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    unfinished.rename(target)


def _program(name: str) -> str:
    """The host path of a program."""
    path = shutil.which(name)
    if path is None:
        sys.exit(f"images.py: there is no {name} on this machine's PATH")
    return path


def _with_libraries(programs: Mapping[str, str]) -> dict[str, bytes | str]:
    """Image paths to host paths: `programs`, and the shared libraries that they load, the loader included."""
    files: dict[str, bytes | str] = {path: os.path.realpath(source) for path, source in programs.items()}
    for source in programs.values():
        # ldd fails for a static program, which needs nothing.
        words = subprocess.run(["ldd", source], capture_output=True, text=True, check=False, timeout=30).stdout.split()
        files |= {word.lstrip("/"): os.path.realpath(word) for word in words if word.startswith("/")}
    return files


def main(folder: Path) -> None:
    """Make all images."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as tmp:
        source, pause = Path(tmp, "pause.c"), Path(tmp, "pause")
        source.write_text(PAUSE)
        subprocess.run(["gcc", "-static", "-Os", "-s", "-o", str(pause), str(source)], check=True, timeout=60)
        write_image(folder, "localhost/pause:1", ["/pause"], {"pause": str(pause)}, {})
    common: dict[str, bytes | str] = {"etc/passwd": PASSWD, "tmp/.keep": b""}
    busybox = _program("busybox")
    listing = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True, timeout=30).stdout
    applets = {f"bin/{applet}": "busybox" for applet in listing.split() if applet != "busybox"}
    write_image(folder, "localhost/busybox:1", ["/bin/sh"], common | _with_libraries({"bin/busybox": busybox}), applets)
    programs = {f"bin/{name}": _program(name) for name in GLIBC_PROGRAMS}
    files, links = common | _with_libraries(programs), {"bin/sh": "bash"}
    write_image(folder, "localhost/glibc:1", ["/bin/sh"], files, links)
    write_image(folder, "localhost/variables:1", ["/bin/sh"], files, links, env=VARIABLES)
    write_image(folder, "docker.io/my/cuda-program:1", EXAMPLE, files, links)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
