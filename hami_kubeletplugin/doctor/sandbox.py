"""A process in a mount name space of its own, with the mounts that our CDI edits give to containers, and our variables.

    python -I -S sandbox.py <JOB

No container runtime is needed. What the edits mount where nothing is yet goes into an overlay above that folder, which nobody
else sees and which ends with the process, however it ends. Then a program with the loader's usual ways takes its place.
"""

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS: Final = 0x00020000
_BIND, _REC, _PRIVATE, _READ_ONLY, _REMOUNT = 4096, 16384, 1 << 18, 1, 32
PROGRAM: Final = """\
import ctypes, json, os

def cuda():
    try:
        lib = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"no_cuda": str(error)}
    device, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    for name, *arguments in (
        ("cuInit", 0),
        ("cuDeviceGet", ctypes.byref(device), 0),
        ("cuDevicePrimaryCtxRetain", ctypes.byref(context), device),
        ("cuCtxSetCurrent", context),
        ("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total)),
    ):
        try:
            code = getattr(lib, name)(*arguments)
        except AttributeError:
            return {"no_cuda": "libcuda has no " + name}
        if code:
            return {"failed": "%s failed with %d" % (name, code)}
    return {"total": total.value}

found = cuda()
with open("/proc/self/maps") as maps:
    paths = {line.split(None, 5)[5].strip() for line in maps if "/" in line}
found["mapped"] = [name for name in os.environ["DOCTOR_FILES"].split(":") if name in paths]
print("doctor:" + json.dumps(found), flush=True)
"""
"""What takes the place: asks CUDA for its memory, and tells what it has mapped. Any Python runs it, with nothing of ours."""


def job(mounts: list[Any], environment: dict[str, str], scratch: Path, files: list[str]) -> bytes:
    """What is to be done, as it is read from stdin.

    Args:
        mounts: As in CDI.
        environment: Variables of the program.
        scratch: An empty folder, for what only the process sees.
        files: Paths of the container, of which the program tells whether it has them mapped.
    """
    variables = {**environment, "DOCTOR_FILES": ":".join(files)}
    return json.dumps({"mounts": mounts, "environment": variables, "scratch": str(scratch)}).encode()


def _main() -> None:
    work = json.load(sys.stdin)
    scratch = Path(work["scratch"])
    if _LIBC.unshare(_NEW_MOUNTS):
        raise _error("unshare")
    _mount(None, "/", None, _REC | _PRIVATE)
    # Opened before anything is mounted above them, and here: nothing can be bound from another mount name space.
    sources = [None if each.get("type") == "tmpfs" else os.open(each["hostPath"], os.O_PATH) for each in work["mounts"]]
    _mount("doctor", str(scratch), "tmpfs", 0, "size=1m,mode=700")
    layers: dict[Path, Path] = {}
    for each, source in zip(work["mounts"], sources, strict=True):
        target, kind = Path(each["containerPath"]), each.get("type")
        _make(target, layers, scratch, folder=source is None or os.path.isdir(f"/proc/self/fd/{source}"))
        if source is None:
            _mount(kind, str(target), kind, 0, ",".join(o for o in each["options"] if "=" in o))
        else:
            _mount(f"/proc/self/fd/{source}", str(target), None, _BIND)
            if "ro" in each.get("options", ()):
                _mount(None, str(target), None, _REMOUNT | _BIND | _READ_ONLY)
            os.close(source)
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", PROGRAM], work["environment"])  # noqa: S606


def _make(target: Path, layers: dict[Path, Path], scratch: Path, *, folder: bool) -> None:
    """Have something to mount on, in an overlay if there is nothing.

    Args:
        target: Where.
        layers: Overlays that are there by now: one above another would be one too many for the kernel.
        scratch: Where they keep what is made.
        folder: Whether it is to be a folder.
    """
    if target.exists():
        return
    above = next(path for path in target.parents if path.is_dir())
    if not any(above.is_relative_to(path) for path in layers):
        layers[above] = own = scratch / str(len(layers))
        for name in ("upper", "work"):
            (own / name).mkdir(parents=True)
        _mount("doctor", str(above), "overlay", 0, f"lowerdir={above},upperdir={own}/upper,workdir={own}/work")
    target.parent.mkdir(parents=True, exist_ok=True)
    if folder:
        target.mkdir()
    else:
        target.touch()


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    if _LIBC.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]):
        raise _error(target)


def _error(where: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), where)


if __name__ == "__main__":
    try:
        _main()
    except OSError as failure:
        sys.exit(f"{failure.filename}: {failure.strerror}")
