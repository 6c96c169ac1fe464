"""What the doctor says of sockets, of the kubelet, and of what the daemon knows."""

from dataclasses import replace
from pathlib import Path

from hami_kubeletplugin.doctor import serving
from hami_kubeletplugin.doctor.serving import Served
from hami_kubeletplugin.findings import Level
from hami_kubeletplugin.gpu.conditions import EVERY, Condition, What
from tests.unit.doctor.objects import levels, worst

DRIVER = "gpu.hami.io"
SOCKET, REGISTRATION = Path("/p/dra.sock"), Path("/r/gpu.hami.io-reg.sock")
WELL = Served(
    "7 pod-x",
    SOCKET,
    REGISTRATION,
    frozenset({SOCKET, REGISTRATION}),
    alive=True,
    ready=True,
    info=(DRIVER, str(SOCKET)),
)


def test_a_daemon_that_serves() -> None:
    """All is well, and who it is is said."""
    (found,) = serving.sockets_judged(WELL)
    assert (found.level, "process 7 on pod-x" in found.what) == (Level.ok, True)
    assert levels(serving.kubelet_judged(WELL, DRIVER, ())) == [Level.ok]


def test_no_daemon() -> None:
    """An error with where to look; the rest is not known, and a socket that was left is only a hint."""
    gone = replace(WELL, holder=None, alive=False, ready=False)
    found = list(serving.sockets_judged(gone))
    assert levels(found) == [Level.error, Level.hint]
    assert "kubectl -n hami-system get pods" in worst(found).mend
    assert levels(serving.kubelet_judged(gone, DRIVER, ())) == [Level.unknown]


def test_sockets_that_are_missing_or_mute() -> None:
    """Each is named."""
    assert str(REGISTRATION) in worst(serving.sockets_judged(replace(WELL, there=frozenset({SOCKET})))).what
    assert "nobody answers" in worst(serving.sockets_judged(replace(WELL, alive=False))).what


def test_a_registration_of_somebody_else() -> None:
    """The kubelet would call another socket."""
    found = worst(serving.kubelet_judged(replace(WELL, info=("other.io", "/x")), DRIVER, ()))
    assert "told of other.io at /x" in found.what
    assert "nobody answers" in worst(serving.kubelet_judged(replace(WELL, info=None), DRIVER, ())).what


def test_a_kubelet_that_has_not_registered_it() -> None:
    """Known by the daemon, in its words; what else it lacks is no matter of the kubelet."""
    unready = replace(WELL, ready=False)
    assert "has not registered" in worst(serving.kubelet_judged(unready, DRIVER, ())).what
    said = Condition(What.NOT_READY, "the kubelet refused it", "kubelet")
    assert worst(serving.kubelet_judged(unready, DRIVER, [said])).what == "the kubelet refused it"
    other = Condition(What.NOT_READY, "no library", "hami-core")
    assert list(serving.kubelet_judged(unready, DRIVER, [other])) == []


def test_conditions() -> None:
    """What keeps claims from being prepared is an error, a GPU that is not well a warning, what is only worth knowing a hint."""
    found = [
        serving.condition_judged(EVERY, Condition(What.NOT_READY, "no library", "hami-core")),
        serving.condition_judged("GPU-1", Condition(What.LOST, "it does not answer")),
        serving.condition_judged("GPU-1", Condition(What.GIVEN_OUT_TWICE, "a plugin")),
        serving.condition_judged("GPU-1", Condition(What.CORDONED, "asked for")),
    ]
    assert levels(found) == [Level.error, Level.warning, Level.warning, Level.hint]
    assert found[1].what == "GPU GPU-1: lost: it does not answer"
