"""The YAML file that describes a simulated node.

All fields may be left out, save that a GPU has a `model`, or a `name` and `memoryMiB`:

    driver: "550.54.15"         # or: missing
    cuda: "12.4"                # or: unknown
    profile: a100x8             # a named node; or else `gpus`
    absent: [3]                 # minors of GPUs that can't be read just now
    gpus:
      - model: a100             # a100, h100, h200, l40s, t4: fills in what is not given
        minor: 0                # default: the place in the list
        uuid: GPU-00000000-0000-0000-0000-000000000000   # default: made from the node's name and the minor
        pciBusID: 0000:07:00.0  # default, together with pcieRoot and numaNode: a slot of the model's board
        pcieRoot: pci0000:00    # or: unknown
        numaNode: 3             # or: unknown
        name: NVIDIA A100-SXM4-40GB
        brand: Nvidia
        architecture: Ampere
        computeCapability: 8.0  # or: unknown
        memoryMiB: 40960
        nvlink: [1, 2]          # minors of NVLink neighbours; default: all of the board for SXM models

Checked strictly: an unknown field is an error. Every scalar is read as text, so YAML makes no number of `8.10`.
"""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hami_kubeletplugin.api.errors import SettingsError
from hami_kubeletplugin.gpu import pci, profiles


def _none_if_unknown(value: object) -> object:
    return None if value == "unknown" else value


def _version(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", value, re.ASCII)
    if match is None:
        raise ValueError("must be <major>.<minor>, or unknown")
    return int(match[1]), int(match[2])


def _bus_id(value: str) -> str:
    bus_id = pci.normalise(value)
    if bus_id is None:
        raise ValueError("must be a PCI bus id like 0000:07:00.0")
    return bus_id


def _model(value: str) -> str:
    if value not in profiles.MODELS:
        raise ValueError(f"must be one of {', '.join(profiles.MODELS)}")
    return value


# The validator that stands last runs first.
Version = Annotated[tuple[int, int] | None, BeforeValidator(_version), BeforeValidator(_none_if_unknown)]
Minor = Annotated[int, Field(ge=0, lt=profiles.MAX_GPUS)]
Numa = Annotated[Annotated[int, Field(ge=0, le=1023)] | None, BeforeValidator(_none_if_unknown)]
Root = Annotated[
    Annotated[str, Field(pattern=r"^pci[0-9a-f]{4,8}:[0-9a-f]{2}$")] | None, BeforeValidator(_none_if_unknown)
]


class SimulatedGpu(BaseModel):
    """One of `gpus`. A field that was given is in `model_fields_set`: None may mean unknown."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[str, AfterValidator(_model)] | None = None
    minor: Minor = -1
    uuid: str | None = Field(None, pattern=r"^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
    pci_bus_id: Annotated[str, AfterValidator(_bus_id)] | None = Field(None, alias="pciBusID")
    pcie_root: Root = Field(None, alias="pcieRoot")
    numa_node: Numa = Field(None, alias="numaNode")
    name: str | None = Field(None, min_length=1)
    brand: str = ""
    architecture: str = ""
    compute_capability: Version = Field(None, alias="computeCapability")
    memory_mib: int | None = Field(None, alias="memoryMiB", gt=0)
    nvlink: tuple[Minor, ...] | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.model is None and (self.name is None or self.memory_mib is None):
            raise ValueError("needs a model, or else a name and memoryMiB")
        return self


class SimulatedNode(BaseModel):
    """A whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    driver: str = Field(profiles.DRIVER_VERSION, min_length=1)
    cuda: Version = profiles.CUDA_DRIVER_VERSION
    profile: str | None = None
    absent: frozenset[Minor] = frozenset()
    gpus: tuple[SimulatedGpu, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, fields: Any) -> Any:
        if not isinstance(fields, dict) or "profile" not in fields:
            return fields
        if "gpus" in fields:
            raise ValueError("give either profile or gpus, not both")
        gpus = profiles.profile(str(fields["profile"]))
        if gpus is None:
            raise ValueError(f"profile {fields['profile']!r} is not known; known are {profiles.KNOWN}")
        return fields | {"gpus": gpus}

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        minors = self.minors
        for minor in sorted((self.absent | {peer for gpu in self.gpus for peer in gpu.nvlink or ()}) - set(minors)):
            raise ValueError(f"absent or nvlink names minor {minor}, but no GPU has it")
        for field, values in (
            ("minor", minors),
            ("uuid", [gpu.uuid for gpu in self.gpus]),
            ("pciBusID", [place.pci_bus_id for place in self.places]),
        ):
            for value, times in Counter(values).items():
                if value is not None and times > 1:
                    raise ValueError(f"{times} of gpus have {field} {value}")
        return self

    @property
    def minors(self) -> list[int]:
        """The minor of each GPU."""
        return [index if gpu.minor < 0 else gpu.minor for index, gpu in enumerate(self.gpus)]

    @property
    def places(self) -> list[profiles.Location]:
        """Where each GPU sits. Whoever gives the bus id gives the rest too: only a default slot has a known root."""
        places = []
        for gpu, minor in zip(self.gpus, self.minors, strict=True):
            board = profiles.MODELS[gpu.model].board if gpu.model else profiles.SERVER
            slot = profiles.place(board, minor)
            if gpu.pci_bus_id is not None:
                slot = profiles.Location(gpu.pci_bus_id, None, None)
            given = {name: getattr(gpu, name) for name in ("pcie_root", "numa_node") if name in gpu.model_fields_set}
            places.append(slot._replace(**given))
        return places


def read(file: Path) -> SimulatedNode:
    """Read and check a file.

    Raises:
        SettingsError: It can't be read, or is wrong; names the field.
    """
    import yaml  # noqa: PLC0415 - costs memory, and only files need it

    try:
        # BaseLoader makes text of every scalar: a bus id is a base-60 number to YAML, and 8.10 would become 8.1.
        fields = yaml.load(file.read_bytes(), yaml.BaseLoader)  # noqa: S506 - it builds nothing but str, list and dict
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingsError(
            f"--simulate {file}: {reason}; give a readable YAML file, or a profile: {profiles.KNOWN}"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"--simulate {file}: not valid YAML: {error}") from error
    if not isinstance(fields, dict):
        raise SettingsError(
            f"--simulate {file}: must be a mapping with some of {', '.join(SimulatedNode.model_fields)}"
        )
    try:
        return SimulatedNode.model_validate(fields)
    except ValidationError as error:
        details = "; ".join(_explain(detail) for detail in error.errors(include_url=False))
        raise SettingsError(f"--simulate {file}: {details}") from None


def _explain(detail: Mapping[str, Any]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"]).lstrip(".")
    if detail["type"] == "extra_forbidden":
        shape = SimulatedGpu if len(detail["loc"]) > 1 else SimulatedNode
        known = ", ".join(field.alias or name for name, field in shape.model_fields.items())
        return f"{path}: unknown field; known are {known}"
    if detail["type"] == "value_error":
        said = str(detail["ctx"]["error"])
        given = f", got {detail['input']!r}" if isinstance(detail["input"], str) else ""
        return (f"{path}: " if path else "") + said + given
    return f"{path}: {detail['msg']}, got {detail['input']!r}"
