"""The manifests in examples/ as data, and what their heads say that becomes of them.

The comment at the head of each file ends with a block of YAML:

    # Expected:
    #   train/main: {CUDA_DEVICE_MEMORY_LIMIT_0: 4000m, CUDA_VISIBLE_DEVICES: 0}
    #   greedy: {waits: cannot allocate all claims}

`POD/CONTAINER` says what is seen in there: variables, with all limits there are (`all` is the memory of the whole GPU);
`GPU <i>: {attribute: value}` of the i-th GPU; `same: attribute` of all its GPUs. `POD` says why it is not there: it `waits`,
`does not start` or is `refused`, with a part of the reason. `*` stands for what a controller adds to a pod's name.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests import REPOSITORY

Json = dict[str, Any]
FOLDER = REPOSITORY / "examples"
IMAGE = "my/cuda-program:1"
VARIABLE = re.compile(r"(?:CUDA|GPU|LIBCUDA|NVIDIA)_[A-Z0-9_]+")
FATES = ("waits", "does not start", "refused")


@dataclass
class Seen:
    """What a container is to see.

    Attributes:
        variables: With all limits there are.
        gpus: Attributes by the GPU's number in the container.
        same: An attribute that all its GPUs have the same of.
    """

    variables: dict[str, str] = field(default_factory=dict)
    gpus: dict[int, Mapping[str, str]] = field(default_factory=dict)
    same: str | None = None


@dataclass(frozen=True)
class Example:
    """One file.

    Attributes:
        path: Of the file.
        objects: Its documents.
        seen: By (pod, container).
        fates: Of pods that don't run: (one of FATES, part of the reason).
    """

    path: Path
    objects: list[Json]
    seen: dict[tuple[str, str], Seen]
    fates: dict[str, tuple[str, str]]

    @property
    def name(self) -> str:
        """As links in docs have it."""
        return str(self.path.relative_to(FOLDER))

    def pods(self) -> list[tuple[str, Json]]:
        """(name, spec) of all pods; those of a controller have its name and `-*`."""
        made = []
        for each in self.objects:
            name, spec = each["metadata"]["name"], each.get("spec", {})
            if each["kind"] == "Pod":
                made.append((name, spec))
            elif "template" in spec:
                made.append((f"{name}-*", spec["template"]["spec"]))
        return made


def examples(folder: Path) -> list[Example]:
    """Those directly in a folder, by name."""
    return [read(path) for path in sorted(folder.glob("*.yaml"))]


def read(path: Path) -> Example:
    """One example.

    Raises:
        ValueError: Its head has no such block, or one that can't be understood.
    """
    text = path.read_text()
    head = [line.removeprefix("#")[1:] for line in _head(text.splitlines())]
    starts = [index for index, line in enumerate(head) if line.startswith("Expected") and line.endswith(":")]
    if len(starts) != 1:
        raise ValueError(f"{path}: one line of the comment at its head has to be `# Expected…:`")
    example = Example(path, [*yaml.safe_load_all(text)], {}, {})
    for name, told in yaml.safe_load("\n".join(head[starts[0] + 1 :])).items():
        pod, _, container = name.partition("/")
        if container:
            example.seen[pod, container] = _seen(f"{path}: {name}", told)
            continue
        [(fate, reason)] = told.items()
        if fate not in FATES:
            raise ValueError(f"{path}: {name}: {fate} is none of {FATES}")
        example.fates[pod] = fate, str(reason)
    return example


def _head(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        if not line.startswith("#"):
            return
        yield line


def _seen(where: str, told: Mapping[str, Any]) -> Seen:
    seen = Seen()
    for name, value in told.items():
        if VARIABLE.fullmatch(name):
            seen.variables[name] = str(value)
        elif found := re.fullmatch(r"GPU (\d+)", name):
            seen.gpus[int(found[1])] = value
        elif name == "same":
            seen.same = str(value)
        else:
            raise ValueError(f"{where}: {name} can't be checked")
    return seen
