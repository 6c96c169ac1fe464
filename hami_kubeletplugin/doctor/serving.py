"""The daemon's sockets, and what the daemon itself and the kubelet know."""

import asyncio
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc

from hami_kubeletplugin.doctor.place import Place
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.gpu.conditions import EVERY, HEALTH, Condition, Conditions, Health, What
from hami_kubeletplugin.health import kept
from hami_kubeletplugin.kubelet.registration import SERVICE
from hami_kubeletplugin.kubelet.sockets import PLACES, dra_socket, registration_socket
from hami_kubeletplugin.kubelet.sockets import serving as lock_holder
from hami_kubeletplugin.kubelet.standard import LIVENESS, READINESS, serving
from hami_kubeletplugin.kubelet.wire import pluginregistration_v1_pb2 as wire

_WITHIN: Final = 3.0
_PODS: Final = "kubectl -n hami-system get pods -l app.kubernetes.io/name=hami-kubeletplugin -o wide"
_LOGS: Final = "kubectl -n hami-system logs -l app.kubernetes.io/name=hami-kubeletplugin --tail 50"


@dataclass(frozen=True, slots=True)
class Served:
    """What answers on this node.

    Attributes:
        holder: Who holds the driver's lock, PID and host; None: nobody.
        socket, registration: The sockets' paths.
        there: Which of these are sockets.
        alive, ready: What the health service on the driver's socket says.
        info: What the kubelet is told at the registration socket: name and endpoint; None: no answer.
    """

    holder: str | None
    socket: Path
    registration: Path
    there: frozenset[Path]
    alive: bool = False
    ready: bool = False
    info: tuple[str, str] | None = None


def look(place: Place) -> Served:
    """Ask all of it, in the place of the two where somebody answers: daemons that follow each other take turns.

    Raises:
        SocketPathTooLong: The sockets can't be there.
    """
    both = [_look(place, where) for where in PLACES]
    return max(both, key=lambda served: (served.alive, len(served.there)))  # of equals the first


def _look(place: Place, where: int) -> Served:
    settings = place.settings
    socket = dra_socket(settings.plugin_dir, where)
    registration = registration_socket(settings.registry_dir, settings.driver_name, where)
    there = frozenset(path for path in (socket, registration) if _is_socket(path))
    return Served(
        lock_holder(settings.plugin_dir),
        socket,
        registration,
        there,
        alive=socket in there and asyncio.run(serving(socket, LIVENESS)),
        ready=socket in there and asyncio.run(serving(socket, READINESS)),
        info=_info(registration) if registration in there else None,
    )


def sockets(place: Place) -> Iterator[Finding]:
    """The daemon and its sockets."""
    yield from sockets_judged(look(place))


def sockets_judged(served: Served) -> Iterator[Finding]:
    """Whether a daemon serves. Pure."""
    if served.holder is None:
        yield Finding(
            check="sockets",
            level=Level.error,
            what="no daemon runs on this node: nobody holds the lock beside " + str(served.socket),
            why="No pod with GPUs can start here, and pods that end keep their share of the GPU.",
            mend=f"{_PODS}\n{_LOGS} --previous",
        )
    for path in (served.socket, served.registration):
        if path not in served.there and served.holder is not None:
            yield Finding(
                check="sockets",
                level=Level.error,
                what=f"{path} is not there, or no socket, and the daemon ({served.holder}) runs",
                why="The kubelet can't reach the driver, so pods with GPUs wait.",
                mend=f"ls -l {path.parent}\n{_LOGS}",
            )
    if served.socket in served.there and not served.alive:
        yield Finding(
            check="sockets",
            level=Level.error if served.holder else Level.hint,
            what=f"nobody answers at {served.socket}" + ("" if served.holder else ": a former daemon left it"),
            why="The kubelet can't reach the driver, so pods with GPUs wait." if served.holder else "",
            mend=f"{_LOGS}" if served.holder else "",
        )
    elif served.holder is not None and served.alive:
        what = f"the daemon (process {served.holder.replace(' ', ' on ', 1)}) answers at {served.socket}"
        yield Finding(check="sockets", level=Level.ok, what=what)


def kubelet(place: Place) -> Iterator[Finding]:
    """What the kubelet knows of the driver."""
    yield from kubelet_judged(look(place), place.settings.driver_name, _conditions(place).get(EVERY, ()))


def kubelet_judged(served: Served, driver: str, conditions: Sequence[Condition]) -> Iterator[Finding]:
    """Whether the kubelet is told the right thing, and has the driver registered. Pure.

    That it has is known by the daemon, whom it tells: its readiness, and what it says of that.
    """
    if served.holder is None or not served.alive:
        yield Finding(check="kubelet", level=Level.unknown, what="no daemon answers: see sockets")
        return
    if served.info is None:
        yield Finding(
            check="kubelet",
            level=Level.error,
            what=f"nobody answers at {served.registration}",
            why="There the kubelet learns of the driver.",
            mend=_LOGS,
        )
    elif served.info != (driver, str(served.socket)):
        name, endpoint = served.info
        yield Finding(
            check="kubelet",
            level=Level.error,
            what=f"at {served.registration} the kubelet is told of {name} at {endpoint}, and this is {driver} at {served.socket}",
            why="The kubelet calls somebody else for this driver's claims.",
            mend="# give both the same --driver-name and --plugin-dir, or run doctor with those of the daemon",
        )
    said = [each for each in conditions if each.what is What.NOT_READY and each.value == "kubelet"]
    if said or not (served.ready or any(each.what is What.NOT_READY for each in conditions)):
        yield Finding(
            check="kubelet",
            level=Level.error,
            what=said[0].message if said else f"the kubelet has not registered {driver}, or claims can't be prepared",
            why="Pods with GPUs wait: the kubelet finds no driver for their claims.",
            mend="journalctl -u kubelet | grep -i plugin | tail\nsystemctl status kubelet",
        )
    elif served.info == (driver, str(served.socket)) and served.ready:
        yield Finding(
            check="kubelet", level=Level.ok, what=f"the kubelet has registered {driver} and is told {served.socket}"
        )


def conditions(place: Place) -> Iterator[Finding]:
    """What the daemon says of this node and its GPUs."""
    if lock_holder(place.settings.plugin_dir) is None:
        yield Finding(check="conditions", level=Level.unknown, what="no daemon runs that would know: see sockets")
        return
    found = _conditions(place)
    yield from (condition_judged(uuid, each) for uuid, all_ in found.items() for each in all_)
    if not found:
        yield Finding(check="conditions", level=Level.ok, what="the daemon has nothing to say against any GPU")


def condition_judged(uuid: str, condition: Condition) -> Finding:
    """What a condition means. Pure."""
    where = "" if uuid == EVERY else f"GPU {uuid}: "
    worst = condition.what is What.NOT_READY
    healthy = HEALTH[condition.what] is Health.HEALTHY and condition.what is not What.GIVEN_OUT_TWICE
    return Finding(
        check="conditions",
        level=Level.error if worst else Level.hint if healthy else Level.warning,
        what=f"{where}{condition.what}: {condition.message}",
        why="No claim can be prepared."
        if worst
        else "Nothing new is put on the GPU while its taint says so (--taints).",
        mend="" if worst else "# docs/operating.md, 'GPUs that are not well', says what to do for each",
    )


def _conditions(place: Place) -> dict[str, tuple[Condition, ...]]:
    holder, found = lock_holder(place.settings.plugin_dir), kept.read(place.settings.plugin_dir)
    if holder is None or found is None or found.holder != holder:
        return {}
    board = Conditions()
    board.restore(found.by_source)
    return dict(board.all.get())


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def _info(path: Path) -> tuple[str, str] | None:
    """What a registration socket says."""
    channel = grpc.insecure_channel(f"unix:{quote(str(path))}", options=(("grpc.enable_http_proxy", 0),))
    try:
        ask = channel.unary_unary(
            f"/{SERVICE}/GetInfo",
            request_serializer=wire.InfoRequest.SerializeToString,
            response_deserializer=wire.PluginInfo.FromString,
        )
        answer = ask(wire.InfoRequest(), timeout=_WITHIN)
    except grpc.RpcError:
        return None
    finally:
        channel.close()
    return answer.name, answer.endpoint
