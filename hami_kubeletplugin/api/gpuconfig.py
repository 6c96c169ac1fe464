"""The opaque config of a DeviceClass or ResourceClaim: `gpu.hami.io/v1alpha1`, kind `GpuConfig`.

    apiVersion: gpu.hami.io/v1alpha1
    kind: GpuConfig
    corePolicy: force

Decoding is strict: an unknown field or value refuses the claim and names the field, since a typo that is ignored is a limit
that is not kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hami_kubeletplugin.api.errors import ConfigError
from hami_kubeletplugin.api.names import CONFIG_API_VERSION, CONFIG_KIND
from hami_kubeletplugin.api.quoting import quoted

CorePolicy = Literal["default", "force", "disable"]
Priority = Literal["high", "low"]
Enforcement = Literal["auto", "always"]


@dataclass(frozen=True, slots=True)
class Policy:
    """How limits are enforced in a container: the fields of GpuConfig on which all its requests have to agree. None = default."""

    core_policy: CorePolicy | None = None
    priority: Priority | None = None
    log_level: int | None = None


class GpuConfig(BaseModel):
    """How HAMi-core treats the GPUs of a request. A field left out keeps what the class says, or the default."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    api_version: str = Field(CONFIG_API_VERSION, alias="apiVersion")
    kind: str = CONFIG_KIND
    """Both are held against their names by `decode`, which says what it wants; `Literal` would want them written again."""
    core_policy: CorePolicy | None = Field(None, alias="corePolicy")
    """When the core limit is enforced: `force` always, `disable` never, `default` as the region's switch says
    (GPU_CORE_UTILIZATION_POLICY, HAMi-core multiprocess_memory_limit.c:1045)."""
    priority: Priority | None = None
    """CUDA_TASK_PRIORITY: high 0, low 1. Default low, as in HAMi-core."""
    allow_shared_containers: bool | None = Field(None, alias="allowSharedContainers")
    """Let several containers, or pods, use one share at the same time, each with the whole limit. Default false: refused."""
    enforcement: Enforcement | None = None
    """`auto`, the default: a container whose every GPU is wholly its own gets no HAMi-core, as there is nothing to limit.
    `always`: it gets HAMi-core all the same, e.g. to have it measured. One request that says so is enough."""
    log_level: int | None = Field(None, alias="logLevel", ge=0, le=4)
    """LIBCUDA_LOG_LEVEL: 0 and 1 errors, 2 warnings, 3 info, 4 debug. Default: 1."""

    def over(self, base: Self) -> Self:
        """This config on top of `base`: fields that are set here win."""
        return base.model_copy(update=self.model_dump(exclude_none=True))

    @property
    def policy(self) -> Policy:
        """What of it concerns the enforcement in a container."""
        return Policy(**{field.name: getattr(self, field.name) for field in fields(Policy)})


class ClaimRights(NamedTuple):
    """What claims may say about their own limits. A DeviceClass, which administrators make, may say all of it.

    Attributes:
        shared_containers: `allowSharedContainers: true`, by which each of several containers gets the whole limit.
        core_policy_disable: `corePolicy: disable`, by which none has a core limit.
    """

    shared_containers: bool = True
    core_policy_disable: bool = True

    def check(self, config: GpuConfig, where: str) -> None:
        """Refuse what a claim may not say.

        Args:
            config: A claim's.
            where: Its field path, for the message.

        Raises:
            ConfigError: It lifts a limit that has to stay.
        """
        refused = {
            "allowSharedContainers: true": config.allow_shared_containers and not self.shared_containers,
            "corePolicy: disable": config.core_policy == "disable" and not self.core_policy_disable,
        }
        for said, is_refused in refused.items():
            if is_refused:
                raise ConfigError(
                    f"{where}: {said} is refused in claims on this node, by its administrator; leave it out, or use a "
                    "DeviceClass that says it"
                )


ALL_RIGHTS: Final = ClaimRights()
_MOST_FIELDS: Final = 32
"""That each get a word if they are wrong."""


def decode(parameters: object, where: str) -> GpuConfig:
    """Decode opaque parameters.

    Args:
        parameters: What stands below `opaque.parameters`.
        where: The field path of `parameters`, for messages.

    Raises:
        ConfigError: Not an object, wrong apiVersion or kind, an unknown field, or a value that is not allowed.
    """
    if not isinstance(parameters, Mapping):
        raise ConfigError(f"{where}: must be an object of kind {CONFIG_KIND}, not {type(parameters).__name__}")
    for field, expected in (("apiVersion", CONFIG_API_VERSION), ("kind", CONFIG_KIND)):
        if parameters.get(field) != expected:
            raise ConfigError(f"{where}.{field}: must be {expected!r}, got {quoted(parameters.get(field))}")
    if len(parameters) > _MOST_FIELDS:  # each of them would be an error in the message
        raise ConfigError(f"{where}: has {len(parameters)} fields; known are {_known()}")
    try:
        return GpuConfig.model_validate(dict(parameters))
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(where, detail) for detail in error.errors(include_url=False))) from None


def _explain(where: str, detail: Mapping[str, Any]) -> str:
    # A union adds the member it tried to the location; the field alone is what people wrote.
    path = f"{where}.{detail['loc'][0]}"
    if detail["type"] == "extra_forbidden":
        return f"{path}: unknown field; known are {_known()}"
    return f"{path}: {detail['msg']}, got {quoted(detail['input'])}"


def _known() -> str:
    return ", ".join(field.alias or name for name, field in GpuConfig.model_fields.items())
