"""The API server: whether it can be reached, its version and clock, and what our token may do."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

from hami_kubeletplugin.api.errors import ApiError, ApiNotFound, HamiError, SettingsError
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.doctor.place import Once, Place
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.kube.call import Call, Object
from hami_kubeletplugin.kube.config import load
from hami_kubeletplugin.kube.resource_api import KubeClient, kept

OLDEST: Final = (1, 35)
GATES_ON: Final = (1, 36)
"""From here on DRAConsumableCapacity is on by default."""
_SKEW: Final = 60.0
"""Seconds. Tokens and certificates have minutes; what HTTP says has whole seconds."""
_CLAIMS: Final = 200
_HELM: Final = "helm upgrade hami-dra charts/hami-dra -n hami-system"
_APPLY: Final = f"{_HELM}   # without helm: kubectl apply -f daemonset.yaml"


class Right(NamedTuple):
    """One of the rights of a ClusterRole."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


RIGHTS: Final = tuple(
    Right(group, resource, verb)
    for group, resource, verbs in (
        ("resource.k8s.io", "resourceclaims", ("get",)),
        ("", "pods", ("get",)),
        ("", "events", ("create",)),
        ("", "nodes", ("get",)),
        ("resource.k8s.io", "resourceslices", ("list", "watch", "create", "update", "delete")),
    )
    for verb in verbs
)
"""Of daemonset.yaml."""
STATUS_RIGHTS: Final = (Right("resource.k8s.io", "resourceclaims/status", "patch"),)
"""Of claim-status.yaml."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What the API server said.

    Attributes:
        server: Where it is.
        version: Its major and minor.
        skew: Seconds that its clock is before ours; None: it did not say.
        node: Our Node, or why it can't be had.
        slices: All ResourceSlices of this node, or why they can't be had.
        claims: Of what is prepared here, by UID: the claim's UID now, None if it is gone, or why it can't be had.
        rights: Those that we lack, or why they can't be asked for.
    """

    server: str
    version: tuple[int, int]
    skew: float | None
    node: Object | ApiError
    slices: Sequence[Object] | ApiError
    claims: Mapping[str, str | ApiError | None]
    rights: Sequence[Right] | ApiError


class Cluster:
    """What is asked of the API server, once for all checks.

    Args:
        place: This node.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self.ask = Once(lambda: asyncio.run(self._ask()))

    def answers(self) -> Answers:
        """For checks that compare with them.

        Raises:
            ApiError: There are none; why is said by the check `api`.
        """
        try:
            return self.ask()
        except HamiError as error:
            raise ApiError("the API server can't be asked: see api") from error

    async def _ask(self) -> Answers:
        settings, access = self._place.settings, load(self._place.settings.kubeconfig)
        node = settings.node_name
        wanted = (*RIGHTS, *(STATUS_RIGHTS if settings.device_status == "written" else ()))
        async with KubeClient(access, timeout=max(self._place.timeout - 2, 1)) as client:
            before = time.time()
            version = await client.server_version()
            skew = skewed(client.date, before, time.time())
            slices = kept(client.selected_slices({"fieldSelector": f"spec.nodeName={node}"}), lambda each: each)
            prepared = self._place.prepared()[:_CLAIMS]
            found = await asyncio.gather(
                client.get_node(node),
                slices,
                _lacking(client, wanted),
                *(_uid(client, each) for each in prepared),
                return_exceptions=True,
            )
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, ApiError):
                raise each
        listed = found[1]
        return Answers(
            access.server,
            version,
            skew,
            node=found[0],  # type: ignore[arg-type] # as asked for, in this order
            slices=listed if isinstance(listed, ApiError) else listed.items,  # type: ignore[union-attr, arg-type]
            rights=found[2],  # type: ignore[arg-type]
            claims={each.uid: uid for each, uid in zip(prepared, found[3:], strict=True)},  # type: ignore[misc]
        )


async def _uid(client: KubeClient, claim: Prepared) -> str | None:
    """The UID that the claim of that name has now."""
    try:
        found = await client.get_claim(claim.ref.namespace, claim.ref.name)
    except ApiNotFound:
        return None
    return str(found["metadata"]["uid"])


async def _lacking(client: KubeClient, wanted: Sequence[Right]) -> list[Right]:
    """Which rights our token hasn't. Everybody may ask that for himself."""
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    call = Call("create", "selfsubjectaccessreviews.authorization.k8s.io", path)
    lacking = []
    for right in wanted:
        resource, _, subresource = right.resource.partition("/")
        attributes = {"group": right.group, "resource": resource, "subresource": subresource, "verb": right.verb}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {name: value for name, value in attributes.items() if value}},
        }
        answer = await client.ask(call, body)
        if not (answer.get("status") or {}).get("allowed"):
            lacking.append(right)
    return lacking


def skewed(date: str, before: float, after: float) -> float | None:
    """Seconds that a server's clock is before ours, 0 if it may be none. Pure.

    Args:
        date: What it said, in whole seconds.
        before: UNIX time at which it was asked.
        after: UNIX time at which it had answered.
    """
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
    if theirs > after:
        return theirs - after
    return min(theirs + 1 - before, 0.0)


def api(place: Place, cluster: Cluster) -> Iterator[Finding]:
    """The server, its version and clock."""
    try:
        answers = cluster.ask()
    except SettingsError as error:
        yield Finding(
            check="api",
            level=Level.unknown,
            what=str(error),
            why="The daemon's own access is in its pod.",
            mend="kubectl -n hami-system exec PODOFTHISNODE -- hami-kubeletplugin doctor",
        )
    except HamiError as error:
        yield Finding(
            check="api",
            level=Level.error,
            what=str(error),
            why="Claims can't be prepared, and slices are not kept up to date.",
            mend="kubectl get --raw /readyz",
        )
    else:
        yield from api_judged(answers, place.settings.node_name)


def api_judged(answers: Answers, node: str) -> Iterator[Finding]:
    """What it said of itself and of the node. Pure."""
    version = ".".join(map(str, answers.version))
    if answers.version < OLDEST:
        yield Finding(
            check="api",
            level=Level.error,
            what=f"{answers.server} is Kubernetes {version}; 1.36 or newer is needed, or 1.35 with DRAConsumableCapacity",
            why="GPUs can't be shared without what it lacks.",
            mend="# upgrade the cluster",
        )
    else:
        yield Finding(check="api", level=Level.ok, what=f"{answers.server} answers, Kubernetes {version}")
    if answers.version == OLDEST:
        yield Finding(
            check="api",
            level=Level.hint,
            what="Kubernetes 1.35 needs the feature gate DRAConsumableCapacity; whether it is on shows in the slices: see slices",
        )
    if answers.skew is not None and abs(answers.skew) > _SKEW:
        ahead = "ahead of" if answers.skew > 0 else "behind"
        yield Finding(
            check="api",
            level=Level.warning,
            what=f"the API server's clock is {abs(answers.skew):.0f} s {ahead} this node's",
            why="Tokens and certificates are taken for expired, or for not valid yet.",
            mend="timedatectl status; chronyc tracking",
        )
    if isinstance(answers.node, ApiNotFound):
        yield Finding(
            check="api",
            level=Level.error,
            what=f"there is no Node {node}",
            why="Slices belong to the Node that they are of.",
            mend="# give --node-name (NODE_NAME) as `kubectl get nodes` has it",
        )
    elif isinstance(answers.node, ApiError):
        yield Finding(
            check="api", level=Level.error, what=str(answers.node), why="Slices can't be published.", mend=_APPLY
        )


def rbac(cluster: Cluster) -> Iterator[Finding]:
    """What our token may do."""
    yield from rbac_judged(cluster.answers().rights)


def rbac_judged(lacking: Sequence[Right] | ApiError) -> Iterator[Finding]:
    """Which rights of the manifests it has not. Pure."""
    if isinstance(lacking, ApiError):
        yield Finding(check="rbac", level=Level.unknown, what=str(lacking))
        return
    for right in lacking:
        status = (
            f"{_HELM} --reset-then-reuse-values --set claimStatus.enabled=true"
            "   # without helm: kubectl apply -f claim-status.yaml"
        )
        yield Finding(
            check="rbac",
            level=Level.error,
            what=f"the token may not {right}",
            why="The daemon needs it; what it lacks fails with 403.",
            mend=status if right in STATUS_RIGHTS else _APPLY,
        )
    if not lacking:
        yield Finding(
            check="rbac", level=Level.ok, what="the token may do all that daemonset.yaml's ClusterRole allows"
        )
