"""Each start of a container finds its region as new, or is refused with the reason. All pods are made at once."""

import re
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import NAMESPACE, Cluster
from tests.e2e.conftest import clean
from tests.e2e.daemon import Daemon
from tests.e2e.inside import look, look_cleared
from tests.e2e.manifests import Json, claim, container, init_container, pod, request, template
from tests.waiting import wait_for

USE = "VGPU_REPORT=1 VGPU_ALLOC=900"
"""With a program behind it: it uses 900 of the 1000 MiB that containers here have."""
STATE: Json = {"volumeMounts": [{"name": "state", "mountPath": "/state"}]}
SCRATCH: Json = {"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}
VOLUMES: list[Json] = [{"name": name, "emptyDir": {}} for name in ("state", "tmp")]
USE_AND_DIE = f"""
for i in {{1..30}}; do : & done  # later ones come beyond the PIDs that a runtime's threads have had
{USE} bash -c 'echo $BASHPID >/state/pid; kill -9 $BASHPID'"""
TAKE_ITS_PID = f"""
read pid </state/pid
for i in {{1..100}}; do sleep infinity & [ $! -lt "$pid" ] || break; done
echo "taken=$(( $! == pid ))"
{USE} sleep 0"""
"""Another program has the PID of the one that was killed, so that HAMi-core takes that one for alive; one more uses memory."""
DEAD_PID_COMES_BACK = f"if [ -e /state/pid ]; then {TAKE_ITS_PID}\nelse {USE_AND_DIE}; fi"
SPOIL = """
if [ ! -e /state/spoiled ]; then
  echo junk >/tmp/cudevshr.cache && chmod 0 /tmp/cudevshr.cache && : >/state/spoiled; fi"""


def said(text: str) -> dict[str, str]:
    """`key=value` lines."""
    return dict(re.findall(r"^([^=\n]+)=(.*)$", text, re.MULTILINE))


def container_ids(cluster: Cluster, name: str) -> dict[str, str]:
    """A pod's present containers."""
    [found] = cluster.running(name)
    return {status["name"]: status["containerID"] for status in found["status"]["containerStatuses"]}


def restarted(cluster: Cluster, name: str, before: dict[str, str], *containers: str) -> None:
    """Wait until these containers run again."""

    def probe() -> bool:
        found = cluster.get("pod", name)
        assert found is not None
        now = {status["name"]: status for status in found["status"]["containerStatuses"]}
        for each in containers:
            status = now[each]
            assert "running" in status["state"], status
            assert status.get("containerID") != before[each], status
        return True

    wait_for(f"{', '.join(containers)} of {name} to run again", probe, timeout=90)


def why_not(cluster: Cluster, name: str, *words: str) -> str:
    """Wait for the event that says why a pod's container does not start."""

    def probe() -> str | None:
        told = cluster.events(name)
        return next((message for message in told if all(word in message for word in words)), None)

    return wait_for(f"an event of {name} with {' and '.join(words)}", probe, timeout=60)


@pytest.fixture(scope="module")
def pods(session_daemon: Daemon, cluster: Cluster) -> Iterator[None]:
    """All pods of this file."""
    if not session_daemon.is_running:
        session_daemon.start()
    leave_behind = f"{USE_AND_DIE}; chmod 0 /tmp/cudevshr.cache"
    cluster.apply(
        template("t", request(memory="1000Mi")),
        claim("restarts", *(request(name, memory="1000Mi") for name in ("killed", "spoiled"))),
        claim("held", request(memory="1000Mi")),
        claim("handed-on", request(memory="1000Mi")),
        pod(
            "restarts",
            container("killed", claims=[("gpus", "killed")], script=DEAD_PID_COMES_BACK, **STATE),
            container("spoiled", claims=[("gpus", "spoiled")], script=SPOIL, **STATE),
            container("held", claims=["held"], **STATE),
            claims={"gpus": "restarts", "held": "held"},
            volumes=VOLUMES,
        ),
        pod(
            "stages",
            container(claims=["gpu"], script=TAKE_ITS_PID, **STATE),
            initContainers=[init_container("first", claims=["gpu"], script=leave_behind) | STATE],
            templates={"gpu": "t"},
            volumes=VOLUMES,
        ),
        pod(
            "folder",
            container(claims=["gpu"], **SCRATCH),
            initContainers=[init_container("first", script="mkdir /tmp/cudevshr.cache") | SCRATCH],
            templates={"gpu": "t"},
            volumes=VOLUMES,
        ),
        pod(
            "read-only",
            container(claims=["gpu"], volumeMounts=[SCRATCH["volumeMounts"][0] | {"readOnly": True}]),
            templates={"gpu": "t"},
            volumes=VOLUMES,
        ),
        pod("early", container(claims=["gpu"]), claims={"gpu": "handed-on"}),
    )
    cluster.running("restarts", "stages", "early")
    yield
    clean(cluster, session_daemon)


def test_killed_and_started_again(session_daemon: Daemon, cluster: Cluster, pods: None) -> None:
    """What a killed process used does not count after the restart, though its PID is in use; what root spoilt is whole again.

    A container whose region a process of the node holds open does not start, says which process to look for, and starts by
    itself when that has ended.
    """
    before = container_ids(cluster, "restarts")
    wait_for("both first runs", lambda: cluster.run_in("restarts", "held", "cat", "/state/pid", "/state/spoiled"))
    found = cluster.get("resourceclaim", "held")
    assert found is not None
    region = session_daemon.hami_dir / "cache" / found["metadata"]["uid"] / "use-0.region"
    with region.open("r+b"):
        for name in before.values():
            cluster.kill_container(name)
        restarted(cluster, "restarts", before, "killed", "spoiled")
        why_not(cluster, "restarts", "e2e/held", str(region), "open for writing", "fuser")
    was = said(cluster.kubectl("logs", "restarts", "-n", NAMESPACE, "-c", "killed", "--previous"))
    report = said(cluster.logs("restarts", "killed"))
    assert (was["alloc"], report["taken"], report["alloc"], report["cache.first"]) == ("1", "1", "1", "0")
    assert "used.0" not in report
    for name in ("killed", "spoiled"):
        assert look(cluster, "restarts", name).limits == look_cleared(cluster, "restarts", name).limits == [(1000, 0)]
    restarted(cluster, "restarts", before, "held")
    assert look_cleared(cluster, "restarts", "held").limits == [(1000, 0)]


def test_what_an_init_container_leaves_behind(cluster: Cluster, pods: None) -> None:
    """An init container on the same claim is killed while it uses memory, and takes all rights away: the next starts afresh."""
    report = said(cluster.logs("stages", "main"))
    assert (report["taken"], report["alloc"], report["cache.first"]) == ("1", "1", "0")
    assert "used.0" not in report
    assert look(cluster, "stages").limits == look_cleared(cluster, "stages").limits == [(1000, 0)]


@pytest.mark.parametrize(
    ("name", "words"),
    [("folder", ("/tmp/cudevshr.cache", "not a directory")), ("read-only", ("/tmp/", "read-only file system"))],
)
def test_no_place_for_the_region(cluster: Cluster, pods: None, name: str, words: tuple[str, ...]) -> None:
    """A container does not start where the region can't be mounted, so never without limit: a folder is there, or none can be."""
    why_not(cluster, name, *words)


def test_a_late_pod_on_the_claim_of_another(cluster: Cluster, pods: None) -> None:
    """A pod that comes to a claim after another one does not start, and its event names claim, pod and the way out."""
    cluster.apply(pod("late", container(claims=["gpu"]), claims={"gpu": "handed-on"}))
    message = why_not(cluster, "late", "claim e2e/handed-on is prepared for another pod")
    late = cluster.get("pod", "late")
    assert late is not None
    assert late["metadata"]["uid"] in message
    assert "ResourceClaimTemplate" in message
    assert look(cluster, "early").limits == [(1000, 0)]
