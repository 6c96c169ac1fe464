"""What a condition of a GPU means to pods: the effect of its taint, by kind."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, cast, get_args

from pydantic import BaseModel, Field, field_validator

Effect = Literal["None", "NoSchedule", "NoExecute", "Off"]
"""Of a taint as in resource.k8s.io/v1, or `Off`: no taint at all."""

DEFAULT_EFFECTS: Final[Mapping[str, Effect]] = MappingProxyType(
    {
        "xid": "None",
        "recovery-action": "NoSchedule",
        "lost": "NoSchedule",
        "not-answering": "NoSchedule",
        "row-remap-pending": "None",
        "row-remap-failure": "NoSchedule",
        "unmonitored": "None",
        "not-ready": "NoSchedule",
        "cordoned": "NoSchedule",
        "given-out-twice": "NoSchedule",
        "hidden": "None",
    }
)
"""By kind of condition. `NoExecute` is none of them: it ends the pods of all who share the GPU at once, without regard to any
PodDisruptionBudget."""


class TaintSettings(BaseModel):
    """How GPUs with a condition are tainted."""

    taints: str = Field(
        "",
        description="Effects of taints gpu.hami.io/KIND as KIND=EFFECT,...: 'None' = only to be seen, 'NoSchedule' = no new "
        "pods, 'NoExecute' = ends the pods of all who share the GPU, at once, 'Off' = no taint. Kinds that are not named: "
        + ",".join(f"{kind}={effect}" for kind, effect in DEFAULT_EFFECTS.items())
        + ".",
    )

    @field_validator("taints")
    @classmethod
    def _known(cls, text: str) -> str:
        _parse(text)
        return text

    @property
    def effects(self) -> Mapping[str, Effect]:
        """The effect of each kind."""
        return {**DEFAULT_EFFECTS, **_parse(self.taints)}


def _parse(text: str) -> Mapping[str, Effect]:
    """The effects that are named.

    Raises:
        ValueError: With what is wrong.
    """
    found: dict[str, Effect] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        kind, given, effect = (word.strip() for word in part.partition("="))
        if not given:
            raise ValueError(f"{part!r} must be KIND=EFFECT")
        if kind not in DEFAULT_EFFECTS:
            raise ValueError(f"there is no kind {kind!r}, only {', '.join(DEFAULT_EFFECTS)}")
        if effect not in get_args(Effect):
            raise ValueError(f"{kind} can't have effect {effect!r}, only {', '.join(get_args(Effect))}")
        if kind in found:
            raise ValueError(f"{kind} is named twice")
        found[kind] = cast("Effect", effect)
    return found
