"""Applying the manifest of a pod that was converted once more."""

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given

from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.fake.json_patch import patched
from hami_kubeletplugin.webhook.conversion.convert import convert
from hami_kubeletplugin.webhook.conversion.reapply import reapplied
from hami_kubeletplugin.webhook.conversion.template import GpuSize
from tests.unit.webhook.pods import bad_pods, container, pod, pods, unhurried

RULES = Conversion()


def sizes() -> list[GpuSize]:
    """The GPUs of the cluster."""
    return [GpuSize("NVIDIA A100-SXM4-40GB", 40960), GpuSize("Tesla P4", 7680)]


def running(manifest: dict[str, Any]) -> dict[str, Any]:
    """The pod that became of a manifest, on its node."""
    made = patched(manifest, convert(manifest, RULES, sizes).patch)
    made["spec"]["nodeName"] = "n1"
    return made


def applied(manifest: dict[str, Any], live: dict[str, Any]) -> dict[str, Any]:
    """What `kubectl apply` of the manifest makes of the pod that is there: amounts come back, the rest stays."""
    merged = copy.deepcopy(live)
    for kind in ("initContainers", "containers"):
        for mine, theirs in zip(manifest["spec"].get(kind) or (), merged["spec"].get(kind) or (), strict=True):
            for amounts in ("limits", "requests"):
                if (mine.get("resources") or {}).get(amounts):
                    theirs["resources"] = dict(theirs.get("resources") or {})
                    theirs["resources"][amounts] = {
                        **theirs["resources"].get(amounts, {}),
                        **mine["resources"][amounts],
                    }
    return merged


@unhurried
@given(pods())
def test_the_same_manifest_changes_nothing(manifest: dict[str, Any]) -> None:
    """Whatever the pod, its manifest applied again leaves the pod that is there."""
    try:
        live = running(manifest)
    except AdmissionError:
        return  # a percentage, and no GPU of the wanted model
    update = applied(manifest, live)
    assert patched(update, reapplied(update, live, RULES, sizes)) == live


@unhurried
@given(bad_pods(), bad_pods())
def test_whatever_comes(update: dict[str, Any], old: dict[str, Any]) -> None:
    """No update raises anything but what its author is told."""
    with contextlib.suppress(AdmissionError):
        reapplied(update, old, RULES, sizes)
    with contextlib.suppress(AdmissionError):
        reapplied(update, {}, RULES, sizes)


def test_other_amounts_are_refused() -> None:
    """A pod's GPUs can't change: a manifest with other amounts is refused, with what to do."""
    live = running(pod(container("main", {"nvidia.com/gpumem": "4000"})))
    update = applied(pod(container("main", {"nvidia.com/gpumem": "8000"})), live)
    with pytest.raises(AdmissionError, match=r"^spec\.containers\[0\]\.resources: .*delete the pod"):
        reapplied(update, live, RULES, sizes)


def test_other_percentages_are_refused() -> None:
    """So is another percentage, which could be told from other GPUs in the cluster only by what was made before."""
    live = running(pod(container("main", {"nvidia.com/gpumem-percentage": "25"})))
    update = applied(pod(container("main", {"nvidia.com/gpumem-percentage": "50"})), live)
    with pytest.raises(AdmissionError, match=r"^spec\.containers\[0\]\.resources: .*delete the pod"):
        reapplied(update, live, RULES, sizes)


def test_pods_from_before_these_variables_went_into_claims() -> None:
    """Their templates don't have them, and their manifests, applied again, change nothing; nor do odd annotations."""
    manifest = pod(container("main", {"nvidia.com/gpumem": "4000"}), annotations={"nvidia.com/gpumem": "4000"})
    live = running({**manifest, "metadata": {"name": "p"}})
    live["metadata"]["annotations"] = dict(manifest["metadata"]["annotations"])
    for one in (manifest, live):
        one["spec"]["containers"][0]["env"] = [
            {"name": "LIBCUDA_LOG_LEVEL", "value": "3"},
            {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "DISABLE"},
        ]
    update = applied(manifest, live)
    assert patched(update, reapplied(update, live, RULES, sizes)) == live


def test_pods_from_before_the_webhook_are_left_alone() -> None:
    """A pod that was never converted can still be labelled and lose its finalizers, even with amounts that we refuse."""
    old = pod(container("main", {"nvidia.com/gpu": "17"}))
    assert reapplied(old | {"metadata": {"labels": {"a": "b"}}}, old, RULES, sizes) == ()


def test_updates_that_name_nothing_of_ours() -> None:
    """What is already converted, and stays so, is not touched."""
    live = running(pod(container("main", {"nvidia.com/gpu": "1"})))
    assert reapplied(live, live, RULES, sizes) == ()


@pytest.mark.parametrize(("before", "now"), [("1.35", "1.36"), ("1.36", "1.35"), ("1.35", ""), ("", "1.35")])
def test_pods_that_live_through_an_upgrade_or_back(before: str, now: str) -> None:
    """What was converted for another Kubernetes, or by 0.1.0, has other requests; its manifest can still be applied."""
    manifest = pod(container("main", {"nvidia.com/gpu": "8", "nvidia.com/gpumem": "4000"}))
    live = patched(manifest, convert(manifest, Conversion(kubernetes=before, max_placements=0), sizes).patch)
    live["spec"]["nodeName"] = "n1"
    rules = Conversion(kubernetes=now)
    update = applied(manifest, live)
    assert patched(update, reapplied(update, live, rules, sizes)) == live
    seven = applied(pod(container("main", {"nvidia.com/gpu": "7", "nvidia.com/gpumem": "4000"})), live)
    with pytest.raises(AdmissionError, match="the GPUs of a pod can't change"):
        reapplied(seven, live, rules, sizes)
