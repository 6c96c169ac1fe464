"""Names that look like ours and are none, and ours where they mean nothing: nobody reads them, so people are told. Pure.

Others that share GPUs, and who repackages HAMi, have names of their own: `nvidia.com/vgpu` (DaoCloud), `nvidia.com/gpualloc`
(Alauda), `volcano.sh/vgpu-number` (Volcano), `nvidia.com/gpu.shared` and `nvidia.com/mig-1g.5gb` (NVIDIA's device plugin). A pod
that is left with one of them is scheduled only where a device plugin serves it, which can't be seen from here.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.annotations import KNOWN
from hami_kubeletplugin.webhook.conversion.demand import Container

_FAMILY: Final = re.compile(r"nvidia\.com/(v?gpu|mig-)|volcano\.sh/vgpu-")
"""As in webhook.yaml, which lets pods that name nothing else come here."""
_MIG: Final = "/mig-"
_NAME: Final = re.compile(r"[-A-Za-z0-9_./]{1,128}")
"""What is compared with ours, each of which has some twenty characters; the API server refuses others."""
_MOST: Final = 32
"""Names of a pod that are compared; to find that one is not like ours takes some 50 us."""
_MOST_PLACES: Final = 1000
"""Names of a pod that are looked at at all."""
_NEAR: Final = 0.75
"""Ratio of difflib from which two last parts of names are taken for one: `cores` and `gpucores`, but not `hostdev` and `gpu`."""
_NEAR_DOMAIN: Final = 0.85
"""`nvida.com`, but not `amd.com`."""
_OPTIONS: Final[Mapping[str, str]] = {
    "percent": "resource_memory_percentage_name",
    "mem": "resource_memory_name",
    "core": "resource_core_name",
    "prio": "resource_priority_name",
    "": "resource_count_name",
}
"""What a name is about, by a word in it, the first that is there."""
_DOMAINS: Final = tuple({f"{name.partition('/')[0]}/" for name in KNOWN})
_WRITTEN_BY_HAMI: Final = ("hami.io/vgpu-", "hami.io/bind-")


def unknown_resources(containers: Iterable[tuple[str, Container]], rules: Conversion) -> Iterator[str]:
    """Resources of a pod that nothing here serves, though their names look like ours, in words.

    Args:
        containers: The pod's, each with its field path.
        rules: Our names.
    """
    seen: set[str] = set()
    ours = _parts(rules.resources)
    for path, name in islice(_resources(containers), _MOST_PLACES):
        if name in seen or len(seen) >= _MOST or not _might_be_meant(name, *ours):
            continue
        seen.add(name)
        if _MIG in name:
            count, memory = rules.resource_count_name, rules.resource_memory_name
            yield (
                f"{path}: MIG is not served here, and where no device plugin serves it the pod waits for ever: for a share of a "
                f"GPU write {count} and {memory}"
            )
        elif option := _option(name, rules):
            yield (
                f"{path}: is not converted, and where no device plugin serves it the pod waits for ever: write "
                f"{getattr(rules, option)}, or set --{option.replace('_', '-')} to this name"
            )


def _resources(containers: Iterable[tuple[str, Container]]) -> Iterator[tuple[str, str]]:
    for path, container in containers:
        for kind in ("limits", "requests"):
            for name in fields.mapping(fields.at(container, "resources", kind)):
                yield f"{path}.resources.{kind}[{name}]", str(name)


@lru_cache(maxsize=8)
def _parts(ours: tuple[str, ...]) -> tuple[frozenset[str], ...]:
    """The names, their domains and what is behind these."""
    parts = [name.rpartition("/") for name in ours]
    return frozenset(ours), frozenset(part[0] for part in parts), frozenset(part[2] for part in parts)


def _might_be_meant(name: str, ours: frozenset[str], domains: frozenset[str], lasts: frozenset[str]) -> bool:
    """Cheap: it is asked for all that is in a pod."""
    if name in ours or not _NAME.fullmatch(name):
        return False
    domain, _, last = name.rpartition("/")
    return domain in domains or last in lasts or bool(_FAMILY.match(name))


@lru_cache(maxsize=256)
def _near(word: str, words: tuple[str, ...], ratio: float = _NEAR) -> str:
    return next(iter(get_close_matches(word, words, 1, ratio)), "")


def _option(name: str, rules: Conversion) -> str:
    """The setting whose resource is meant; empty if it is none of them."""
    domain, _, last = name.rpartition("/")
    by_last = {getattr(rules, option).rpartition("/")[2]: option for option in _OPTIONS.values()}
    by_last[rules.resource_memory_alias.rpartition("/")[2]] = "resource_memory_name"
    domains = tuple(sorted({one.rpartition("/")[0] for one in rules.resources}))
    in_family = bool(_FAMILY.match(name))
    if not in_family and domain not in domains and not _near(domain, domains, _NEAR_DOMAIN):
        return ""
    if near := _near(last, tuple(by_last)):
        return by_last[near]
    return next(option for word, option in _OPTIONS.items() if word in last) if in_family else ""


def refuse_amounts(metadata: Mapping[str, Any], rules: Conversion, where: str) -> None:
    """See that no annotation is one of our resources: who writes the amount there gets another one.

    Args:
        metadata: A pod's.
        rules: Our names.
        where: As for `convert`.

    Raises:
        AdmissionError: One is.
    """
    for told in amounts_among_annotations(metadata, rules, where):
        raise AdmissionError(f"{told}: write it into resources.limits of the container")


def misplaced(metadata: Mapping[str, Any], rules: Conversion, where: str) -> Iterator[str]:
    """Annotations and labels of a pod with GPUs that are spelt wrong, or the other of both, in words; as for `refuse_amounts`."""
    annotations, labels = (fields.mapping(metadata.get(kind)) for kind in ("annotations", "labels"))
    for name in KNOWN:
        if name in labels and name not in annotations:
            yield f"{where}metadata.labels[{name}] has no effect: it belongs in metadata.annotations"
    if names.IGNORE_LABEL in annotations:
        yield f"{where}metadata.annotations[{names.IGNORE_LABEL}] has no effect: it belongs in metadata.labels"
    candidates = (name for name in annotations if _is_close_by(name, rules))
    for name in islice(candidates, _MOST):
        last = {known.partition("/")[2]: known for known in KNOWN}
        if near := _near(name.partition("/")[2], tuple(last)):
            yield f"{where}metadata.annotations[{name}] has no effect: the name is {last[near]}"


def amounts_among_annotations(metadata: Mapping[str, Any], rules: Conversion, where: str) -> Iterator[str]:
    """What `refuse_amounts` refuses, for pods that ask for nothing of ours otherwise."""
    annotations = fields.mapping(metadata.get("annotations"))
    for name in rules.resources:
        if name in annotations:
            yield f"{where}metadata.annotations[{name}]: has no effect, as amounts are no annotations"


def _is_close_by(name: Any, rules: Conversion) -> bool:
    return (
        isinstance(name, str)
        and name.startswith(_DOMAINS)
        and bool(_NAME.fullmatch(name))
        and not name.startswith(_WRITTEN_BY_HAMI)
        and name not in KNOWN
        and name not in rules.resources
    )
