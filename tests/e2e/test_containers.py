"""Containers start with exactly what the scheduler allocated."""

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.inside import look, read
from tests.e2e.manifests import LOOK, claim, config, container, init_container, minor, pod, request, template
from tests.waiting import wait_for


def allocated(cluster: Cluster, claim_name: str) -> list[str]:
    """Devices that a claim got, in the order of its requests."""
    found = cluster.get("resourceclaim", claim_name)
    assert found is not None, f"no claim {claim_name}"
    return [result["device"] for result in found["status"]["allocation"]["devices"]["results"]]


def test_a_container_gets_what_was_allocated(daemon: Daemon, cluster: Cluster) -> None:
    """4000Mi and 30 cores: variables, mounts and preload file say so, and the library is loaded and reads just that."""
    cluster.apply(
        template("t", request(memory="4000Mi", cores=30)),
        pod("p", container(claims=["gpu"]), templates={"gpu": "t"}),
    )
    cluster.running("p")
    inside = look(cluster, "p")
    assert inside.limits == [(4000, 30)]
    expected = {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "4000m",
        "CUDA_DEVICE_SM_LIMIT_0": "30",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "GPU_CORE_UTILIZATION_POLICY": "default",
        "CUDA_TASK_PRIORITY": "1",
    }
    assert expected.items() <= inside.env.items()
    assert not [name for name in inside.env if "LIMIT" in name and name not in expected]
    assert inside.preload == "/usr/local/vgpu/libvgpu.so"
    for path in ("/usr/local/vgpu/libvgpu.so", "/etc/ld.so.preload"):
        assert {"ro", "nosuid", "nodev"} <= inside.mounts[path].options
    assert "rw" in inside.mounts["/tmp/vgpulock"].options
    told = {key: inside.report[key] for key in ("loaded", "own_path", "lock", "consistent")}
    assert told == dict.fromkeys(told, "1")
    # The region is the driver's, not one that the first process made.
    assert (inside.report["cache"], inside.report["cache.first"]) == ("/tmp/cudevshr.cache", "0")


def test_any_user_can_use_the_cache(daemon: Daemon, cluster: Cluster) -> None:
    """A container without root and with a read-only root file system is limited like any other."""
    restricted = {"runAsUser": 65534, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    cluster.apply(
        template("t", request(memory="1000Mi")),
        pod("p", container(claims=["gpu"], securityContext=restricted), templates={"gpu": "t"}),
    )
    cluster.running("p")
    inside = look(cluster, "p")
    assert inside.report["uid"] == "65534"
    assert inside.report["lock"] == "1"
    assert inside.limits == [(1000, 0)]


def test_two_pods_share_a_gpu(daemon: Daemon, cluster: Cluster) -> None:
    """Two pods on one GPU have their own limits and their own region."""
    for name, memory, cores in (("a", "3000Mi", 20), ("b", "5000Mi", 40)):
        cluster.apply(
            claim(name, request(memory=memory, cores=cores, selector=minor(1))),
            pod(name, container(claims=["gpu"]), claims={"gpu": name}),
        )
    cluster.running("a", "b")
    assert allocated(cluster, "a") == allocated(cluster, "b") == ["hami-gpu-1"]
    a, b = look(cluster, "a"), look(cluster, "b")
    assert (a.limits, b.limits) == ([(3000, 20)], [(5000, 40)])
    mounts = [inside.mounts["/tmp/cudevshr.cache"] for inside in (a, b)]
    assert len({(mount.device, mount.source) for mount in mounts}) == 2


def test_a_container_that_is_started_again(daemon: Daemon, cluster: Cluster) -> None:
    """A container that is started again in its pod is limited as before."""
    cluster.apply(
        template("t", request(memory="2000Mi", cores=10)),
        pod("p", container(claims=["gpu"]), templates={"gpu": "t"}),
    )
    cluster.running("p")
    assert look(cluster, "p").limits == [(2000, 10)]
    [running] = cluster.running("p")
    cluster.kill_container(running["status"]["containerStatuses"][0]["containerID"])

    def started_again() -> bool:
        status = cluster.running("p")[0]["status"]["containerStatuses"][0]
        assert status["restartCount"] == 1, status
        return True

    wait_for("the container to be started again", started_again)
    assert look(cluster, "p").limits == [(2000, 10)]


@pytest.mark.parametrize("requests", [("low", "high"), ("high", "low")])
def test_limits_are_in_bus_order(daemon: Daemon, cluster: Cluster, requests: tuple[str, str]) -> None:
    """Limits are numbered by PCI bus, whatever the order of requests, device names or minors."""
    # Minor 3 sits at bus 5e, minor 0 at af.
    wanted = {
        "low": request("low", memory="2000Mi", cores=20, selector=minor(3)),
        "high": request("high", memory="1000Mi", cores=10, selector=minor(0)),
    }
    cluster.apply(
        claim("c", *(wanted[name] for name in requests)),
        pod("p", container(claims=["gpus"]), claims={"gpus": "c"}),
    )
    cluster.running("p")
    assert look(cluster, "p").limits == [(2000, 20), (1000, 10)]


def test_two_claims_in_a_container_are_numbered_together(daemon: Daemon, cluster: Cluster) -> None:
    """A container with two claims of one GPU each has two limits, in bus order, and sees both GPUs."""
    cluster.apply(
        claim("high", request(memory="1000Mi", selector=minor(0))),
        claim("low", request(memory="2000Mi", selector=minor(2))),
        pod("p", container(claims=["high", "low"]), claims={"high": "high", "low": "low"}),
    )
    cluster.running("p")
    inside = look(cluster, "p")
    assert inside.limits == [(2000, 0), (1000, 0)]
    assert inside.env["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_shares_of_one_gpu_add_up(daemon: Daemon, cluster: Cluster) -> None:
    """Two requests that land on one GPU give its container one limit: their sum."""
    requests = (request(name, memory="1500Mi", cores=15, selector=minor(2)) for name in ("one", "two"))
    cluster.apply(claim("c", *requests), pod("p", container(claims=["gpus"]), claims={"gpus": "c"}))
    cluster.running("p")
    inside = look(cluster, "p")
    assert inside.limits == [(3000, 30)]
    assert inside.env["CUDA_VISIBLE_DEVICES"] == "0"


def test_init_container_and_two_containers_with_different_claims(daemon: Daemon, cluster: Cluster) -> None:
    """Each container of a pod, init containers too, gets its own claim; one in sequence may use the same."""
    cluster.apply(
        *(template(f"t{size}", request(memory=f"{size}Mi")) for size in (1000, 2000, 3000)),
        pod(
            "p",
            container("one", claims=["of-one"]),
            container("two", claims=["of-two"]),
            templates={"of-init": "t1000", "of-one": "t2000", "of-two": "t3000"},
            initContainers=[
                init_container("own", claims=["of-init"]),
                init_container("same-as-one", claims=["of-one"]),
            ],
        ),
    )
    cluster.running("p")
    limits = {name: read(cluster.logs("p", name)).limits for name in ("own", "same-as-one")}
    limits |= {name: look(cluster, "p", name).limits for name in ("one", "two")}
    assert limits == {"own": [(1000, 0)], "same-as-one": [(2000, 0)], "one": [(2000, 0)], "two": [(3000, 0)]}


def test_a_container_without_a_claim_is_left_alone(daemon: Daemon, cluster: Cluster) -> None:
    """In a pod with a claim, a container that does not use it gets nothing of it."""
    script = (
        'test ! -e /etc/ld.so.preload && test ! -e /usr/local/vgpu && test -z "$CUDA_VISIBLE_DEVICES" && echo untouched'
    )
    cluster.apply(
        template("t", request(memory="1000Mi")),
        pod("p", container(claims=["gpu"]), container("other", script=script), templates={"gpu": "t"}),
    )
    cluster.running("p")
    assert cluster.logs("p", "other") == "untouched\n"


def test_requests_of_a_claim_for_different_containers(daemon: Daemon, cluster: Cluster) -> None:
    """Containers that name different requests of one claim are each limited by theirs."""
    cluster.apply(
        claim("c", request("small", memory="1000Mi"), request("large", memory="4000Mi")),
        pod(
            "p",
            container("one", claims=[("gpus", "small")]),
            container("two", claims=[("gpus", "large")]),
            claims={"gpus": "c"},
        ),
    )
    cluster.running("p")
    assert look(cluster, "p", "one").limits == [(1000, 0)]
    assert look(cluster, "p", "two").limits == [(4000, 0)]


def test_gpu_config_reaches_the_library(daemon: Daemon, cluster: Cluster) -> None:
    """A claim's GpuConfig sets policy, priority and log level in the container."""
    cluster.apply(
        claim(
            "c", request(memory="1000Mi", cores=50), config=[config(corePolicy="force", priority="high", logLevel=4)]
        ),
        pod("p", container(claims=["gpu"]), claims={"gpu": "c"}),
    )
    cluster.running("p")
    report = look(cluster, "p").report
    assert (report["policy"], report["priority"], report["log_level"]) == ("force", "0", "4")


@pytest.mark.since("1.36")
def test_the_pods_status_tells_the_devices_health(daemon: Daemon, cluster: Cluster) -> None:
    """The kubelet's health stream is served: a pod's status says that its GPU is healthy."""
    cluster.apply(
        template("t", request(memory="1000Mi")),
        pod("p", container(claims=["gpu"]), templates={"gpu": "t"}),
    )

    def healthy() -> bool:
        (found,) = cluster.running("p")
        told = found["status"]["containerStatuses"][0].get("allocatedResourcesStatus", [])
        return [(t["name"], [r["health"] for r in t["resources"]]) for t in told] == [("claim:gpu", ["Healthy"])]

    wait_for("the health of the GPU in the pod's status", healthy)


def test_deleting_a_pod_leaves_nothing(daemon: Daemon, cluster: Cluster) -> None:
    """When a pod goes, the CDI spec, the record and the cache directory of its claim go; other claims keep theirs."""
    cluster.apply(
        template("t", request(memory="1000Mi")),
        *(pod(name, container(claims=["gpu"], script=LOOK), templates={"gpu": "t"}) for name in ("stays", "goes")),
    )
    cluster.running("stays", "goes")
    before = daemon.traces()
    assert {kind: len(names) for kind, names in before.items()} == {"specs": 2, "records": 2, "caches": 2}
    cluster.delete("pod", "goes")

    def one_left() -> dict[str, list[str]] | None:
        left = daemon.traces()
        return left if all(len(names) == 1 for names in left.values()) else None

    after = wait_for("one claim's traces to go", one_left, timeout=30)
    [uid] = [c["metadata"]["uid"] for c in cluster.all("resourceclaims") if c["metadata"]["name"].startswith("stays")]
    assert all(uid in names[0] for names in after.values())
    assert look(cluster, "stays").limits == [(1000, 0)]
