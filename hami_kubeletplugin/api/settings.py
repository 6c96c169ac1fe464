"""Everything that can be set, checked once at the start.

Each field is one option: `cli` makes `--kebab-case` and an environment variable of it, with the description as its help.
"""

from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.beside_settings import BesideSettings
from hami_kubeletplugin.api.claim_settings import ClaimSettings
from hami_kubeletplugin.api.errors import SettingsError
from hami_kubeletplugin.api.gpuconfig import ClaimRights
from hami_kubeletplugin.api.health_settings import HealthSettings
from hami_kubeletplugin.api.metrics_settings import MetricsSettings
from hami_kubeletplugin.api.taint_settings import TaintSettings
from hami_kubeletplugin.api.toolkit_settings import ToolkitSettings

ClaimFiles = Literal["auto", "memory", "disk"]
"""Where what GPU containers write into is."""
DNS_SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"


class Options(BaseModel):
    """Base of all settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def checked(cls, **values: object) -> Self:
        """Validate options as people gave them; None = not given.

        Raises:
            SettingsError: Names each wrong option and says what it must be.
        """
        try:
            return cls.model_validate({name: value for name, value in values.items() if value is not None})
        except ValidationError as error:
            raise SettingsError("; ".join(_explain(detail) for detail in error.errors(include_url=False))) from None


class Sharing(Options):
    """How a GPU is offered to several claims; HAMi's options of the same names."""

    device_split_count: int = Field(
        10,
        ge=1,
        le=names.MAX_SHARERS,
        description="How many claims may share one GPU at the most.",
    )
    device_memory_scaling: float = Field(
        1.0,
        ge=0.01,
        le=100,
        description="Published memory = physical x this. Above 1 memory is oversold: it can run out below a kept limit.",
    )
    device_core_scaling: float = Field(1.0, ge=0.01, le=100, description="Published cores = 100 x this.")


class Discovery(Options):
    """Where GPUs are found."""

    simulate: str | None = Field(
        None, description="No hardware: a profile (a100x8, h100x8, mixed, ...) or a YAML file that stands for the node."
    )
    nvml_library: Path | None = Field(
        None, description="libnvidia-ml.so.1 to load. Default: below --driver-root, else where the loader finds it."
    )
    driver_root: Path = Field(
        Path("/"), description="Where the NVIDIA driver is installed, as the daemon sees it, e.g. /driver-root."
    )
    host_driver_root: Path | None = Field(
        None, description="Where that is on the host, e.g. / or /run/nvidia/driver. Default: the same path."
    )
    sysfs: Path = Field(Path("/sys"), description="Where sysfs is, for PCIe roots and NUMA nodes.")


class Identity(Options):
    """Which driver this is, and where its own files are."""

    driver_name: str = Field(
        names.DRIVER,
        pattern=DNS_SUBDOMAIN,
        max_length=63,
        description="DRA driver name. Clusters coming from HAMi-DRA use hami-core-gpu.project-hami.io.",
    )
    plugin_dir: Path = Field(
        Path(),
        description="Socket, lock and claim records; the same path in and out. Default: /var/lib/kubelet/plugins/<driver>.",
    )
    hami_dir: Path = Field(
        Path("/usr/local/vgpu"),
        description="HAMi-core's files on the host (library, preload file, lock, caches); the same path in and out.",
    )

    @model_validator(mode="before")
    @classmethod
    def _default_plugin_dir(cls, values: Any) -> Any:
        driver = values.get("driver_name", names.DRIVER)
        return {"plugin_dir": Path("/var/lib/kubelet/plugins") / str(driver), **values}


class Places(Identity):
    """All folders of a node in which the driver has something."""

    registry_dir: Path = Field(
        Path("/var/lib/kubelet/plugins_registry"),
        description="The kubelet's plugin registry; the same path in and out.",
    )
    cdi_dir: Path = Field(Path("/var/run/cdi"), description="Where the container runtime looks for CDI specs.")


class Settings(
    Sharing,
    Discovery,
    Places,
    HealthSettings,
    TaintSettings,
    BesideSettings,
    ClaimSettings,
    MetricsSettings,
    ToolkitSettings,
):
    """The node daemon's settings."""

    node_name: str = Field(min_length=1, description="This node; set it to spec.nodeName through the downward API.")
    kubeconfig: Path | None = Field(None, description="How to reach the API server. Default: as a pod in the cluster.")
    hami_core: Path = Field(
        Path("/usr/local/lib/hami"),
        description="HAMi-core: a libvgpu.so, or a directory with several (libvgpu.so*); versions.json beside it says which.",
    )
    hami_core_version: str | None = Field(
        None, description="Which of several libraries to use. Default: the newest whose regions are known."
    )
    glibc_floor: str = Field(
        "2.31",
        pattern=r"^[1-9][0-9]?\.[0-9]{1,3}$",
        description="Oldest glibc of GPU containers: a library that needs a newer one would end every program there.",
    )
    region_hook: Path = Field(
        Path("/usr/local/lib/hami/hami-region-hook"),
        description="The program, shipped by the image, that renews HAMi-core's shared region at each start of a container.",
    )
    claim_files: ClaimFiles = Field(
        "auto",
        description="Where what GPU containers write into is: 'memory' = in small file systems of their own, 'disk' = below "
        "--hami-dir, 'auto' = in memory where the daemon may mount, else on the disk, which containers can fill then.",
    )
    gpu_order: Literal["binpack", "spread"] = Field(
        "binpack",
        description="Which GPU of the node the scheduler fills next: 'binpack' = one after the other, 'spread' = the one of "
        "which least is in use, as of some seconds ago.",
    )
    driver_edits: Literal["toolkit", "runtime", "none"] = Field(
        "toolkit",
        description="Who puts the driver into containers: 'toolkit' = nvidia-ctk's CDI edits, 'runtime' = the NVIDIA "
        "container runtime, 'none' = nobody.",
    )
    shared_containers: Literal["allowed", "refused"] = Field(
        "allowed",
        description="Whether a claim may say allowSharedContainers: true, by which each of several containers gets the whole "
        "limit. A DeviceClass may in any case.",
    )
    core_policy_disable: Literal["allowed", "refused"] = Field(
        "allowed",
        description="Whether a claim may say corePolicy: disable, by which it has no core limit. A DeviceClass may in any case.",
    )
    boot_id_file: Path = Field(
        Path("/proc/sys/kernel/random/boot_id"), description="Changes when the node boots; all caches are fresh then."
    )
    prepare_timeout: float = Field(
        30.0, gt=0, lt=45, description="Seconds for one call of the kubelet, which itself gives up after 45."
    )
    rescan_interval: float = Field(60.0, gt=0, description="Seconds between looks at the hardware.")
    health_interval: float = Field(
        10.0, gt=0, le=25, description="Seconds between health reports; the kubelet forgets a device after 30."
    )
    container_interval: float = Field(
        60.0,
        gt=0,
        description="Seconds between looks at the processes of GPU containers: one is reported in which none has loaded "
        "HAMi-core at two looks.",
    )
    stale_interval: float = Field(600.0, gt=0, description="Seconds between looks for stale claims.")
    stale_grace: float = Field(
        300.0, ge=0, description="Seconds that a claim must have been stale for before it is unprepared."
    )
    lock_timeout: float = Field(
        120.0,
        ge=0,
        description="Seconds to wait for another daemon of this driver on this node to end. Meanwhile this one stands by, and is "
        "ready if it could prepare claims; after that it ends itself.",
    )
    log_format: Literal["json", "console"] = Field("json", description="Form of the log on stderr.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")

    @property
    def claim_rights(self) -> ClaimRights:
        """What claims may say about their own limits."""
        return ClaimRights(self.shared_containers == "allowed", self.core_policy_disable == "allowed")


def _explain(detail: Any) -> str:
    if not detail["loc"]:  # of several options together; it names them
        return str(detail["msg"]).removeprefix("Value error, ")
    option = "--" + str(detail["loc"][-1]).replace("_", "-")
    if detail["type"] == "missing" or (option == "--node-name" and not detail["input"]):
        return f"{option} is missing (in a DaemonSet, set {names.NODE_NAME} to spec.nodeName through the downward API)"
    return f"{option}: {detail['msg']}, got {detail['input']!r}"
