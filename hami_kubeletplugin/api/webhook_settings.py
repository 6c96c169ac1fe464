"""Everything that can be set for the webhook; as in `settings`, each field is one option and one environment variable."""

from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.gpuconfig import CorePolicy
from hami_kubeletplugin.api.settings import DNS_SUBDOMAIN, Options

_RESOURCE: Final = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"


class Conversion(Options):
    """What people may write, and what it means; HAMi's options have the same names (device-config.yaml)."""

    resource_count_name: str = Field(
        names.GPU_COUNT, pattern=_RESOURCE, max_length=316, description="Resource that counts GPUs."
    )
    resource_memory_name: str = Field(
        names.GPU_MEMORY, pattern=_RESOURCE, max_length=316, description="Resource for MiB of each GPU."
    )
    resource_memory_alias: str = Field(
        names.GPU_MEMORY_ALIAS, pattern=_RESOURCE, max_length=316, description="Another name for the same."
    )
    resource_memory_percentage_name: str = Field(
        names.GPU_MEMORY_PERCENTAGE,
        pattern=_RESOURCE,
        max_length=316,
        description="Resource for percent of each GPU's memory.",
    )
    resource_core_name: str = Field(
        names.GPU_CORES,
        pattern=_RESOURCE,
        max_length=316,
        description="Resource for percent of each GPU's cores.",
    )
    resource_priority_name: str = Field(
        names.GPU_PRIORITY,
        pattern=_RESOURCE,
        max_length=316,
        description="Resource for the priority, 0 high, 1 low.",
    )
    default_gpu_num: int = Field(
        1,
        ge=0,
        le=names.MAX_GPUS_PER_CONTAINER,
        description="GPUs of a container that names memory or cores but no number; 0: none.",
    )
    default_memory: int = Field(
        0, ge=0, le=2**31 - 1, description="MiB for containers that name no memory; 0: the whole GPU's."
    )
    default_cores: int = Field(
        0, ge=0, le=100, description="Percent of cores for containers that name none; 0: no limit."
    )
    memory_factor: int = Field(1, ge=1, le=2**20, description="Memory is counted in units of so many MiB.")
    gpu_core_policy: CorePolicy = Field(
        "default", description="When core limits are enforced, for containers that don't say."
    )
    driver_name: str = Field(
        names.DRIVER,
        pattern=DNS_SUBDOMAIN,
        max_length=63,
        description="DRA driver name, as set for the node daemon.",
    )
    device_class: str = Field("", description="DeviceClass that requests name. Default: as the driver.")
    kubernetes: str = Field(
        "",
        pattern=r"^(1\.[0-9]{1,3})?$",
        description="The cluster's Kubernetes, e.g. 1.35. Default: what its API server says; for convert, 1.36 or newer.",
    )
    max_placements: int = Field(
        300,
        ge=0,
        le=10**9,
        description="Most choices that the scheduler may have to try on a node before it finds that there is no room for a pod, "
        "and schedules no other pod meanwhile. 8 GPUs of a container are 127, 9 are 255, 10 are 511, 16 are 32767; 5 containers "
        "with a GPU each, or 5 GPUs on Kubernetes 1.35, are 64, 6 are 325; 4 + 4 in two containers are 343. 300 take 0.5 s on "
        "100 nodes; 0: no bound.",
    )
    max_pod_templates: int = Field(
        8,
        ge=1,
        le=128,
        description="Most ResourceClaimTemplates of one pod: different ways in which its containers ask for GPUs.",
    )
    max_pod_template_bytes: int = Field(
        65536,
        ge=4096,
        le=2**20,
        description="Most bytes of all of them together. One takes some 250, and what names GPUs or types by annotations so much "
        "more as their lists have, once for each memory size if it asks for a percentage.",
    )
    replace_scheduler: str | None = Field(
        None, description="A schedulerName, such as hami-scheduler, that GPU pods get the default scheduler for."
    )

    @model_validator(mode="before")
    @classmethod
    def _default_class(cls, values: Any) -> Any:
        return (
            values
            if values.get("device_class")
            else {**values, "device_class": values.get("driver_name", names.DRIVER)}
        )

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len(set(self.resources)) != len(self.resources):
            raise ValueError("two resources have the same name")
        return self

    @property
    def separate_requests(self) -> bool:
        """Whether GPUs of one request may be shares of one GPU, so that each needs a request of its own.

        From 1.36.0 on the allocator looks for the next device of a request behind the one before
        (k8s.io/dynamic-resource-allocation structured/internal/incubating).
        """
        return bool(self.kubernetes) and tuple(map(int, self.kubernetes.split("."))) < (1, 36)

    @property
    def resources(self) -> tuple[str, ...]:
        """Names of all resources that are ours to take out of a container."""
        return (
            self.resource_count_name,
            self.resource_memory_name,
            self.resource_memory_alias,
            self.resource_memory_percentage_name,
            self.resource_core_name,
            self.resource_priority_name,
        )


class Certificates(Options):
    """Where the webhook's certificate comes from: two files, or a Secret that the webhook keeps itself."""

    tls_cert_file: Path | None = Field(
        None,
        description="Certificate, PEM, read again when it changes. Without it the webhook keeps its own in a Secret.",
    )
    tls_key_file: Path | None = Field(None, description="The key for it.")
    namespace: str = Field(
        names.WEBHOOK_NAMESPACE,
        pattern=DNS_SUBDOMAIN,
        max_length=63,
        description="Namespace of the Secret, the Lease and the Service.",
    )
    service: str = Field(
        names.WEBHOOK,
        pattern=DNS_SUBDOMAIN,
        max_length=63,
        description="The Service through which the API server calls us.",
    )
    tls_secret: str = Field(names.WEBHOOK_SECRET, pattern=DNS_SUBDOMAIN, max_length=253, description="That Secret.")
    configuration: str = Field(
        names.WEBHOOK_CONFIGURATION,
        pattern=DNS_SUBDOMAIN,
        max_length=253,
        description="Name of both webhook configurations, whose caBundle follows our own certificate.",
    )
    tls_hosts: str = Field(
        "", description="More names and addresses for our own certificate, separated by commas, for clientConfig.url."
    )

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("--tls-cert-file and --tls-key-file go together")
        return self


class WebhookSettings(Conversion, Certificates):
    """The webhook's settings."""

    listen: str = Field("0.0.0.0", description="Address to listen on.")
    port: int = Field(9443, ge=0, le=65535, description="Port to listen on; 0: any free one.")
    client_ca: Path | None = Field(
        None,
        description="PEM file of the CA of the API server's client certificate, read again when it changes: only who has a "
        "certificate of it may ask for reviews; health and metrics stay open. Default: who reaches the port may ask.",
    )
    client_name: str = Field(
        "",
        max_length=64,
        description="With --client-ca: the common name that the client's certificate must have. Default: any.",
    )
    kubeconfig: Path | None = Field(None, description="How to reach the API server. Default: as a pod in the cluster.")
    drain_delay: float = Field(
        5.0,
        ge=0,
        le=60,
        description="Seconds from SIGTERM, when readiness goes off, until no more connections are taken: time for the "
        "Service to hear of it.",
    )
    idle_grace: float = Field(
        95.0,
        ge=0,
        le=600,
        description="Seconds after that in which connections that rest are left to the API server to close, which it does when "
        "one has rested for 90. What it asks meanwhile is answered. When all are closed the webhook ends at once.",
    )
    collect_interval: float = Field(3600.0, gt=0, description="Seconds between looks for unused templates.")
    template_lifetime: float = Field(
        86400.0, ge=7200, description="Seconds that a template is kept for after its last use."
    )
    max_namespace_templates: int = Field(
        500,
        ge=1,
        le=10**6,
        description="Most ResourceClaimTemplates that the webhook keeps in one namespace; pods that need one more are refused.",
    )
    namespace_template_rate: float = Field(
        4.0,
        gt=0,
        le=10**6,
        description="KiB of ResourceClaimTemplates that are made in one namespace each second, by each replica; what was not "
        "made in the last two minutes may come at once. A template counts as its size and 1 KiB. Beyond that clients are told to "
        "try again later.",
    )
    template_rate: float = Field(
        40.0,
        gt=0,
        le=10**6,
        description="The same for all namespaces together; more than that of one, or one can use it up.",
    )
    log_format: Literal["json", "console"] = Field("json", description="Form of the log on stderr.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")

    @model_validator(mode="after")
    def _name_of_a_certificate(self) -> Self:
        if self.client_name and self.client_ca is None:
            raise ValueError("--client-name needs --client-ca: nobody is asked for a certificate without it")
        return self
