"""webhook.conflicts: what meets HAMi-core's variables and files is warned about, or refused where it would harm."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.limits import Limit
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.hamicore.contract import variables
from hami_kubeletplugin.webhook.admission.review import LONGEST_WARNING
from hami_kubeletplugin.webhook.conversion.conflicts import conflicts
from hami_kubeletplugin.webhook.conversion.convert import convert
from tests.unit.webhook.pods import GPU, Json, container, pod, unhurried

WHERE = "spec.template.spec.initContainers[10]"
FILES = ("/etc/ld.so.preload", "/usr/local/vgpu/libvgpu.so", "/tmp/cudevshr.cache")
FOLDERS = ("/tmp/vgpulock", "/usr/local/vgpu/cache")


def of_variable(name: str) -> tuple[str, ...]:
    """The warnings for a container that sets it."""
    return conflicts({"env": [{"name": "PATH", "value": "/bin"}, {"name": name, "value": "x"}]}, WHERE)


def of_mount(path: Any) -> tuple[str, ...]:
    """The warnings for a container with a volume there."""
    return conflicts({"volumeMounts": [{"name": "v", "mountPath": path}]}, WHERE)


def refusal(path: Any, kind: str = "volumeMounts", field: str = "mountPath") -> str:
    """Why a container with a volume there is refused."""
    with pytest.raises(AdmissionError) as refused:
        conflicts({kind: [{"name": "v", field: path}]}, WHERE)
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("CUDA_VISIBLE_DEVICES", "the driver's own value wins"),
        ("CUDA_DEVICE_ORDER", "the driver's own value wins"),
        ("NVIDIA_VISIBLE_DEVICES", "the driver's own value wins"),
        ("CUDA_DEVICE_MEMORY_SHARED_CACHE", "the driver's own value wins"),
        ("CUDA_REDIRECT", "the driver's own value wins"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "the limit is that of the container's claim"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "the limit is that of the container's claim"),
        ("CUDA_DEVICE_SM_LIMIT_15", "the limit is that of the container's claim"),
        ("CUDA_DISABLE_CONTROL", "Ask for the whole GPU, with no gpumem and no gpucores"),
        ("LD_PRELOAD", "loaded before HAMi-core"),
    ],
)
def test_variables_that_mean_something_to_the_library(name: str, words: str) -> None:
    """Each is warned about: where it is, and what becomes of it."""
    (warning,) = of_variable(name)
    assert warning.startswith(f"{WHERE}.env[1]: '{name}' ")
    assert words in warning
    assert len(warning.encode()) <= LONGEST_WARNING


def test_it_is_true_that_the_drivers_own_value_wins() -> None:
    """Whatever a warning says to be the driver's is among the variables that it always sets; CDI's win over a pod's."""
    always = {*variables([Limit(1000)], region="/r"), "NVIDIA_VISIBLE_DEVICES"}
    said = [name for name in always if any("driver's own value wins" in warning for warning in of_variable(name))]
    carried = {"GPU_CORE_UTILIZATION_POLICY", "CUDA_TASK_PRIORITY", "LIBCUDA_LOG_LEVEL"}
    assert {*said} == always - {*carried, "CUDA_DEVICE_MEMORY_LIMIT_0"}


@pytest.mark.parametrize(
    "name",
    ["PATH", "GPU_CORE_UTILIZATION_POLICY", "CUDA_TASK_PRIORITY", "LIBCUDA_LOG_LEVEL", "CUDA_HOME", "ld_preload"],
)
def test_other_variables(name: str) -> None:
    """What is harmless, or goes into the claim, is passed over."""
    assert of_variable(name) == ()


CONTROL = "CUDA_DISABLE_CONTROL"


@pytest.mark.parametrize(
    ("limits", "annotations", "warned"),
    [
        ({GPU: 1}, {}, False),
        ({GPU: 2, "nvidia.com/gpumem-percentage": 100}, {}, False),
        ({GPU: 1, "nvidia.com/gpumem": 0}, {"gpu.hami.io/exclusive": "true"}, False),
        ({GPU: 1, "nvidia.com/gpucores": 100}, {}, False),
        ({GPU: 1, "nvidia.com/gpumem": 0}, {}, True),
        ({GPU: 1, "nvidia.com/gpumem": 4000}, {}, True),
        ({GPU: 1, "nvidia.com/gpumem": 4000, "nvidia.com/gpucores": 100}, {}, True),
        ({GPU: 1, "nvidia.com/gpucores": 30}, {"gpu.hami.io/exclusive": "true"}, True),
    ],
)
def test_no_control_of_a_whole_gpu(limits: Json, annotations: Json, warned: bool) -> None:
    """Who has all of a GPU has no limit, as he says; who has a part of it hears how to have all."""
    env = [{"name": CONTROL, "value": "true"}]
    made = convert(pod(container(limits=limits, env=env), annotations=annotations), Conversion(), lambda: ())
    assert [CONTROL in warning for warning in made.warnings] == [True] * warned


@pytest.mark.parametrize("value", ["false", "0", "F"])
def test_control_that_is_not_taken_off(value: str) -> None:
    """Who says that the limit be kept gets it."""
    assert conflicts({"env": [{"name": CONTROL, "value": value}]}, WHERE) == ()


@pytest.mark.parametrize(
    "path", ["/tmp", "/etc", "/usr/local/vgpu", "/usr/local", "/usr", "/", "tmp", "//tmp/", "/a/../tmp"]
)
def test_volumes_above_our_files(path: str) -> None:
    """A volume that our files are mounted over, however its path is written: a warning that the limit holds."""
    (warning,) = of_mount(path)
    assert warning.startswith(f"{WHERE}.volumeMounts[0].mountPath: '{path}': the limit holds")
    assert len(warning.encode()) <= LONGEST_WARNING


@pytest.mark.parametrize("path", [*FILES, *FOLDERS, "/etc//ld.so.preload", "/etc/./ld.so.preload/"])
def test_volumes_at_our_files(path: str) -> None:
    """A volume at the very path of one of our files is hidden by it: a warning."""
    (warning,) = of_mount(path)
    assert "is taken by HAMi-core's own" in warning


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/tmp/cudevshr.cache/x", "could not start"),
        ("/etc/ld.so.preload/x/y", "could not start"),
        ("/usr/local/vgpu/cache/vgpu.cache", "no limit could be kept"),
        ("/tmp/vgpulock/lock", "no limit could be kept"),
        ("/overrideEnv", "could lift the limit"),
        ("/x/../overrideEnv/", "could lift the limit"),
    ],
)
def test_volumes_that_are_refused(path: str, words: str) -> None:
    """A volume that would be mounted after ours, and in it, is refused with its field path and the reason."""
    reason = refusal(path)
    assert reason.startswith(f"{WHERE}.volumeMounts[0].mountPath: '{path}'")
    assert words in reason
    assert reason.endswith("use another path")


@pytest.mark.parametrize("path", [*FILES, *FOLDERS, "/tmp", "/etc/ld.so.preload/x", "/overrideEnv"])
def test_block_devices_at_our_paths(path: str) -> None:
    """A block device there is refused, since runtimes make device nodes after all mounts."""
    assert refusal(path, "volumeDevices", "devicePath").startswith(f"{WHERE}.volumeDevices[0].devicePath: '{path}'")


@pytest.mark.parametrize(
    "path", ["/data", "/tmp/work", "/tmp/cudevshr.cache2", "/etc/app", "/usr/local/vgpu/models", "/overrideEnv2"]
)
def test_other_volumes(path: str) -> None:
    """A volume that meets none of our files is passed over; so is a block device."""
    assert of_mount(path) == ()
    assert conflicts({"volumeDevices": [{"name": "v", "devicePath": path}]}, WHERE) == ()


def test_only_containers_with_gpus_are_looked_at() -> None:
    """Warnings are about GPU containers, by their path in the pod; other containers may do as they like."""
    stray: Json = {"env": [{"name": "LD_PRELOAD", "value": "x"}], "volumeMounts": [{"name": "v", "mountPath": "/tmp"}]}
    refused: Json = {"volumeMounts": [{"name": "v", "mountPath": "/overrideEnv"}]}
    made = convert(pod(container("other", **refused), container("gpu", {GPU: 1}, **stray)), Conversion(), lambda: ())
    assert [warning.split(":")[0] for warning in made.warnings] == [
        "spec.containers[1].env[0]",
        "spec.containers[1].volumeMounts[0].mountPath",
    ]
    with pytest.raises(AdmissionError, match=r"^spec\.containers\[0\]\.volumeMounts\[0\]\.mountPath: '/overrideEnv'"):
        convert(pod(container("gpu", {GPU: 1}, **refused)), Conversion(), lambda: ())


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.sampled_from(FILES)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["name", "mountPath", "devicePath"]), inner, max_size=3),
    ),
    max_leaves=8,
)


@unhurried
@given(st.fixed_dictionaries({}, optional={"env": anything, "volumeMounts": anything, "volumeDevices": anything}))
@example({"env": None, "volumeMounts": {}, "volumeDevices": [None, {"devicePath": ""}]})
def test_whatever_is_in_a_container(one: dict[str, Any]) -> None:
    """What no API server would take is passed over, or refused in one line, never a surprise."""
    try:
        warnings = conflicts(one, WHERE)
    except AdmissionError as error:
        warnings = (str(error),)
    assert all(warning.startswith(WHERE) and warning.isprintable() for warning in warnings)
