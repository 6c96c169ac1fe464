"""Do DeviceClasses lead to the driver's GPUs, and each extended resource to one of them. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.webhook.doctor.expected import differences, manifests
from hami_kubeletplugin.webhook.doctor.installed import few

EXTENDED: Final = "gpu.hami.io-extended"
Json = Mapping[str, Any]
_class = partial(Finding, check="class")


def classes(found: Sequence[Json], driver: str, *, name: str = "") -> Iterator[Finding]:
    """Whether the class of the driver selects its GPUs, and no two serve one resource.

    Args:
        found: All DeviceClasses.
        driver: The driver's name.
        name: Of the class that the webhook names in claims; empty: as the driver.
    """
    by_name = {str(fields.at(each, "metadata", "name")): each for each in found}
    yield from _ours(by_name.get(name or driver), name or driver, driver)
    extended: dict[str, list[str]] = defaultdict(list)
    for each, obj in by_name.items():
        if resource := fields.at(obj, "spec", "extendedResourceName"):
            extended[str(resource)].append(each)
    for resource, several in sorted(extended.items()):
        if len(several) > 1:
            yield _class(
                level=Level.warning,
                what=f"DeviceClasses {few(several)} all have extendedResourceName {resource}",
                why="Kubernetes takes the newest of them: pods may get another driver's GPUs",
                mend=f"kubectl get deviceclass {' '.join(sorted(several))} -o yaml",
            )
    if EXTENDED in by_name and EXTENDED not in {each for several in extended.values() for each in several}:
        yield _class(
            level=Level.error,
            what=f"DeviceClass {EXTENDED} has no extendedResourceName, which the API server dropped",
            why="the feature gate DRAExtendedResource is off: without the webhook, pods that name nvidia.com/gpu wait for ever",
            mend="kubectl delete deviceclass gpu.hami.io-extended   # or switch the gate on, everywhere",
        )


def _ours(obj: Json | None, name: str, driver: str) -> Iterator[Finding]:
    if obj is None:
        yield _class(
            level=Level.error,
            what=f"DeviceClass {name} does not exist",
            why="no claim can be allocated: pods with GPUs wait for ever",
            mend="helm upgrade hami-dra charts/hami-dra -n hami-system   # without helm: kubectl apply -f daemonset.yaml",
        )
        return
    expressions = [
        str(fields.at(selector, "cel", "expression") or "")
        for _, selector in fields.mappings(fields.at(obj, "spec", "selectors"))
    ]
    if not any(f'"{driver}"' in expression for expression in expressions):
        yield _class(
            level=Level.error,
            what=f"DeviceClass {name} does not select the driver {driver}",
            why="claims get devices of another driver, or none",
            mend=f"kubectl edit deviceclass {name}   # spec.selectors: as in daemonset.yaml, with {driver}",
        )
    elif differ := differences(manifests()["classes"][names.DRIVER]["spec"], obj.get("spec"), driver=driver, called={}):
        yield _class(
            level=Level.hint,
            what=f"DeviceClass {name}: {', '.join(f'spec.{each}' for each in differ)} differ from daemonset.yaml of this version",
            mend="kubectl diff -f daemonset.yaml",
        )
    else:
        yield _class(level=Level.ok, what=f"DeviceClass {name} selects the GPUs of {driver}")
