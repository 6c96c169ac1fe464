"""webhook.convert on any pod: it keeps HAMi's meaning, and everything that isn't ours."""

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.fake.json_patch import patched
from hami_kubeletplugin.webhook.conversion.convert import Converted, convert
from hami_kubeletplugin.webhook.conversion.template import GpuSize
from tests.unit.webhook.conversion.oracle import asked, containers, granted, larger, stripped
from tests.unit.webhook.pods import RULES, SIZES, Json, bad_pods, pods, unhurried

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
PATH = re.compile(r"(metadata|spec)\b[^ ]*: ")

many = settings(parent=unhurried, max_examples=120)


def shuffled(value: Any, backwards: bool = True) -> Any:
    """The same JSON with the keys of each object in another order."""
    if isinstance(value, Mapping):
        return {key: shuffled(value[key]) for key in sorted(value, reverse=backwards)}
    return [shuffled(entry) for entry in value] if isinstance(value, list) else value


def named(one: Json) -> dict[str, list[str]]:
    """By container, the claims that it names."""
    return {
        each["name"]: [used["name"] for used in (each.get("resources") or {}).get("claims") or ()]
        for _, each in containers(one)
    }


def specs(made: Converted) -> dict[str, Mapping[str, Any]]:
    """The claims that are made, by template."""
    return {template.name: template.spec for template in made.templates}


@many
@given(pods(), RULES, SIZES)
def test_a_pod_gets_what_hami_would_give(one: Json, rules: Conversion, sizes: Sequence[GpuSize]) -> None:
    """For each container as many GPUs, MiB of each kind of them, cores, and as alone, as HAMi's rules say; no other gets any.

    Those that have a claim in turn get the largest amount of each.
    """
    made = convert(one, rules, lambda: sizes)
    result = patched(one, made.patch)
    found = granted(result, specs(made))
    alone = {"1", "t", "true"} & {one["metadata"].get("annotations", {}).get("gpu.hami.io/exclusive", "").strip()}
    policies = one["metadata"].get("annotations", {}).get("hami.io/gpu-scheduler-policy", "")
    wants = {each["name"]: asked(each, rules, sizes) for _, each in containers(one)}
    users = {
        claim: [wanted for name, wanted in wants.items() if wanted and claim in named(result)[name]]
        for claims in named(result).values()
        for claim in claims
    }
    ours = {use.container: use.claim for use in made.claims}
    for name, wanted in wants.items():
        if wanted is None:
            assert found[name] == []
            continue
        (share,) = found[name]
        together = larger(users[ours[name]])
        event("shared" if together != wanted else "percentage" if len(wanted.mib) > 1 else "one's own")
        assert (share.gpus, share.mib, share.cores) == (together.gpus, together.mib, together.cores)
        assert share.alone == (together.alone or bool(alone) or "mutex" in policies)
        assert share.least == together.least


@many
@given(pods(), RULES, SIZES)
def test_the_last_one_keeps_what_it_asked_for(one: Json, rules: Conversion, sizes: Sequence[GpuSize]) -> None:
    """How limits are kept is as the container says that runs on; compute set aside for others is no limit for one without."""
    made = convert(one, rules, lambda: sizes)
    last = {use.claim: use for use in made.claims}
    for use in last.values():
        assert (use.given.priority, use.given.gpus >= use.demand.gpus) == (use.demand.priority, True)
        lifted = use.demand.cores == 0 and 0 < use.given.cores < 100
        assert use.given.core_policy == ("disable" if lifted else use.demand.core_policy)


@many
@given(pods(), RULES, SIZES)
def test_everything_else_survives(one: Json, rules: Conversion, sizes: Sequence[GpuSize]) -> None:
    """Without what is ours, the pod before is the pod after, but for HAMi's scheduler; nothing of ours is left to schedule by."""
    made = convert(one, rules, lambda: sizes)
    result = patched(one, made.patch)
    before, after = stripped(one), stripped(result, list(specs(made)))
    if made.claims and rules.replace_scheduler and before["spec"].get("schedulerName") == rules.replace_scheduler:
        before["spec"]["schedulerName"] = "default-scheduler"
    assert after == before
    assert stripped(result) == result | {"spec": stripped(result)["spec"]}
    for _, each in containers(result):
        resources = each.get("resources") or {}
        assert not {name for kind in ("limits", "requests") for name in resources.get(kind) or {}} & set(
            rules.resources
        )


@many
@given(pods(), RULES, SIZES)
def test_a_second_pass_changes_nothing(one: Json, rules: Conversion, sizes: Sequence[GpuSize]) -> None:
    """The API server may call again after other webhooks; a pod that needs nothing isn't touched at all."""
    before = copy.deepcopy(one)
    made = convert(one, rules, lambda: sizes)
    assert one == before
    assert replace(convert(patched(one, made.patch), rules, lambda: sizes), warnings=()) == Converted()
    if not any(
        set(rules.resources) & set((each.get("resources") or {}).get(kind) or {})
        for kind in ("limits", "requests")
        for _, each in containers(one)
    ):
        assert replace(made, warnings=()) == Converted()


@many
@given(pods(), RULES, SIZES)
def test_the_same_pod_gives_the_same(one: Json, rules: Conversion, sizes: Sequence[GpuSize]) -> None:
    """Whatever the order of keys, of the known sizes, and the pod's name: so a Deployment needs one template for ever."""
    made = convert(one, rules, lambda: sizes)
    other = shuffled(one)
    other["metadata"] = shuffled(other["metadata"] | {"name": "another"})
    again = convert(other, rules, lambda: list(reversed(sizes)))
    assert again.templates == made.templates
    assert again.patch == made.patch
    assert again.warnings == made.warnings


@many
@given(pods(), RULES, SIZES)
def test_names_and_claims_are_what_the_api_takes(one: Json, rules: Conversion, sizes: Sequence[GpuSize]) -> None:
    """DNS labels of at most 63 characters, unique; every request names cores and shares; all of it is JSON of plain ASCII."""
    made = convert(one, rules, lambda: sizes)
    result = patched(one, made.patch)
    names = [entry["name"] for entry in result["spec"].get("resourceClaims") or ()]
    assert len(names) == len(set(names))
    assert all(LABEL.fullmatch(name) for name in [*names, *specs(made)])
    for _, each in containers(result):
        used = [entry["name"] for entry in (each.get("resources") or {}).get("claims") or ()]
        assert len(used) == len(set(used))
        assert set(used) <= set(names)
    assert {use.claim for use in made.claims} == set(names) - {
        e["name"] for e in one["spec"].get("resourceClaims") or ()
    }
    for spec in specs(made).values():
        json.dumps(spec).encode("ascii")
        requests = spec["devices"]["requests"]
        assert 1 <= len(requests) <= 16
        for device in [d for r in requests for d in r.get("firstAvailable") or [r["exactly"]]]:
            assert {"cores", "shares"} <= set(device["capacity"]["requests"]) <= {"memory", "cores", "shares"}
            assert all(len(selector["cel"]["expression"]) <= 10_240 for selector in device.get("selectors", []))


@many
@given(pods(), RULES, SIZES)
def test_claims_are_shared_only_with_the_past(one: Json, rules: Conversion, sizes: Sequence[GpuSize]) -> None:
    """No two containers that run at the same time have one claim; equal needs have one template.

    An init container holds a claim of its own only if no later container names the same other claims.
    """
    made = convert(one, rules, lambda: sizes)
    order = [(kind, each.get("restartPolicy") == "Always", each["name"]) for kind, each in containers(one)]
    before = named(one)
    place = {name: number for number, (_, _, name) in enumerate(order)}
    ends = {name: kind == "initContainers" and not sidecar for kind, sidecar, name in order}
    for use in made.claims:
        later = [other for other in made.claims if place[other.container] > place[use.container]]
        if not ends[use.container]:
            assert all(other.claim != use.claim for other in later)
        elif any(before[other.container] == before[use.container] for other in later):
            assert any(other.claim == use.claim for other in later)
        for other in made.claims:
            assert (use.claim != other.claim) or use.given == other.given
            assert (use.given != other.given) or use.template == other.template


@settings(parent=many, max_examples=400)
@given(bad_pods(), RULES, SIZES)
def test_anything_is_converted_or_refused(one: Json, rules: Conversion, sizes: Sequence[GpuSize]) -> None:
    """No pod makes the program fail: it is refused with a path and one printable line, or converted to something stable."""
    before = json.dumps(one)
    made, message = Converted(), None
    try:
        made = convert(one, rules, lambda: sizes)
    except AdmissionError as refused:
        message = str(refused)
    event("converted" if message is None else "refused")
    assert message is None or PATH.match(message), message
    result = patched(one, made.patch)
    json.dumps([result, [template.object() for template in made.templates]])
    assert message or replace(convert(result, rules, lambda: sizes), warnings=()) == Converted()
    assert json.dumps(one) == before


@settings(parent=many, max_examples=60)
@given(st.lists(pods(), min_size=2, max_size=2), RULES, SIZES)
def test_equal_needs_of_different_pods_are_one_template(
    two: list[Json], rules: Conversion, sizes: Sequence[GpuSize]
) -> None:
    """Templates have one name if, and only if, they say the same."""
    made = [template for one in two for template in convert(one, rules, lambda: sizes).templates]
    for first in made:
        for second in made:
            assert (first.name == second.name) == (first.spec == second.spec)
