"""Are the policies in force that keep daemon and webhook to their own: as this version's manifests have them. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.api.names import WEBHOOK_NAMESPACE
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.webhook.doctor.expected import accounts, differences, manifests

OPTIONAL: Final = frozenset({"hami-claim-limits", "hami-kubeletplugin-own-claim-status"})
"""Those of claim-limits.yaml and claim-status.yaml, which are looked at where they are."""
Json = Mapping[str, Any]
_policy = partial(Finding, check="policies")
_WHY: Final = {
    "hami-kubeletplugin-own-node": "whoever has one node's token could take away or invent GPUs of other nodes",
    "hami-kubeletplugin-own-events": "whoever has one node's token could tell anything about any pod, as if it were true",
    "hami-webhook-own-templates": "whoever has the webhook's token could change people's ResourceClaimTemplates",
    "hami-webhook-own-certificate": "whoever has the webhook's token could read and change all that is created in the cluster",
    "hami-claim-limits": "claims have no bounds, and one can hold up the scheduler for minutes",
    "hami-kubeletplugin-own-claim-status": "whoever has one node's token could write any claim's status, on Kubernetes 1.35",
}


class Who(NamedTuple):
    """Whom policies are for.

    Attributes:
        accounts: `daemon` and `webhook`: the ServiceAccounts (namespace, name) of their pods; empty: not known.
        driver: The driver's name.
        namespace: Of daemon and webhook.
    """

    accounts: Mapping[str, Collection[tuple[str, str]]]
    driver: str
    namespace: str


def ours(policies: Sequence[Json], bindings: Sequence[Json]) -> dict[str, tuple[Json | None, Json | None]]:
    """By the manifests' names, our policies and their bindings. Charts may call them otherwise, but for the end."""
    found = {}
    for name in manifests()["policies"]:
        alike = [each for each in policies if _name(each).endswith(name.removeprefix("hami"))]
        policy = next((each for each in alike if _name(each) == name), next(iter(alike), None))
        called = _name(policy) if policy else name
        bound = [each for each in bindings if fields.at(each, "spec", "policyName") == called]
        binding = next((each for each in bound if _name(each) == called), next(iter(bound), None))
        found[name] = policy, binding
    return found


def _name(obj: Json) -> str:
    return str(fields.at(obj, "metadata", "name"))


def policies(
    found: Mapping[str, tuple[Json | None, Json | None]],
    who: Who,
) -> Iterator[Finding]:
    """Whether they are there, bound, and for those whom they are meant for.

    Args:
        found: As from `ours`.
        who: See there.
    """
    good = 0
    for name, (policy, binding) in found.items():
        if policy is None and binding is None and name in OPTIONAL:
            continue
        problems = [*_problems(name, policy, binding, who)]
        yield from problems
        good += not problems
    if good:
        yield _policy(level=Level.ok, what=f"{good} ValidatingAdmissionPolicies are in force as this version has them")


def _problems(
    name: str,
    policy: Json | None,
    binding: Json | None,
    who: Who,
) -> Iterator[Finding]:
    known = manifests()["policies"][name]
    broken = partial(_policy, level=Level.error, why=_WHY[name], mend=_mend(known["file"]))
    if policy is None:
        yield broken(what=f"ValidatingAdmissionPolicy {name} does not exist")
        return
    if binding is None:
        yield broken(
            what=f"ValidatingAdmissionPolicyBinding {name} does not exist, so the policy of that name is not in force"
        )
        return
    if "Deny" not in fields.sequence(fields.at(binding, "spec", "validationActions")):
        yield broken(what=f"ValidatingAdmissionPolicyBinding {name} does not deny what the policy forbids")
    called = {who.namespace: WEBHOOK_NAMESPACE, _name(policy): name}
    yield from _for_others(name, policy, who, known["file"])
    for kind, obj in (("policy", policy), ("binding", binding)):
        if differ := differences(known[kind], obj.get("spec"), driver=who.driver, called=called):
            title = "ValidatingAdmissionPolicy" + ("Binding" if kind == "binding" else "")
            yield _policy(
                level=Level.warning,
                what=f"{title} {name}: spec.{', spec.'.join(differ)} differ from {known['file']} of this version",
                why=f"it is of another version, or somebody changed it; if it allows more: {_WHY[name]}",
                mend=f"kubectl diff -f {known['file']}\n{_mend(known['file'])}",
            )


def _for_others(name: str, policy: Json, who: Who, file: str) -> Iterator[Finding]:
    program = "webhook" if name.startswith(names.WEBHOOK) else "daemon"
    meant, running = accounts(fields.at(policy, "spec", "matchConditions")), set(who.accounts.get(program, ()))
    if meant and running and (unbound := running - meant):
        yield _policy(
            level=Level.error,
            what=f"ValidatingAdmissionPolicy {name} is for {_said(meant)}, and the {program} runs as {_said(unbound)}",
            why=f"it binds nobody: {_WHY[name]}",
            mend=f"kubectl edit validatingadmissionpolicy {name}   # matchConditions; {file} has the names by default",
        )


def _said(those: Collection[tuple[str, str]]) -> str:
    return ", ".join(f"ServiceAccount {namespace}/{name}" for namespace, name in sorted(those))


def _mend(file: str) -> str:
    return f"helm upgrade hami-dra charts/hami-dra -n hami-system   # without helm: kubectl apply -f {file}"
