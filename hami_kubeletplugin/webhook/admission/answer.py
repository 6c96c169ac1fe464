"""What is answered to a review: HTTP on one side, the pure core and the cluster on the other.

Whatever a webhook configuration sends here by mistake: a pod with GPUs must not slip through as it is, and a request that can
bring none must not be held up.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final, Protocol

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.api.errors import (
    AdmissionError,
    ApiConflict,
    ApiDenied,
    ApiError,
    ApiUnavailable,
    ReviewError,
    TooSoon,
)
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.webhook.admission.reasons import INVALID, reason
from hami_kubeletplugin.webhook.admission.review import LONGEST_MESSAGE, Answer, Review
from hami_kubeletplugin.webhook.conversion.convert import convert
from hami_kubeletplugin.webhook.conversion.fleet import Fleet
from hami_kubeletplugin.webhook.conversion.reapply import reapplied
from hami_kubeletplugin.webhook.conversion.template import GpuSize, Template
from hami_kubeletplugin.webhook.conversion.toleration import after_plugin
from hami_kubeletplugin.webhook.conversion.validate import validate

log = get_logger()

PODS: Final = frozenset({("", "v1", "pods")})
CLAIMS: Final = frozenset(
    ("resource.k8s.io", version, resource)
    for version in ("v1", "v1beta2", "v1beta1")
    for resource in ("resourceclaims", "resourceclaimtemplates")
)
_RETRY_AFTER: Final = 1
"""Seconds after which clients come back by themselves when the API server was away."""

Judge = Callable[[Review, float], Awaitable[Answer]]
"""From a review, and the time of the event loop at which the answer must be there, to the answer."""


class Ensures(Protocol):
    """Templates in the cluster."""

    async def ensure(self, namespace: str, templates: Sequence[Template], *, dry_run: bool) -> None:
        """Make sure that all exist with that content; writes nothing on a dry run."""


class KnowsSizes(Fleet, Protocol):
    """The cluster's GPUs."""

    @property
    def synced(self) -> bool:
        """They have been listed once."""

    def known(self) -> Sequence[GpuSize]:
        """The different sizes."""

    def slots(self) -> Collection[int]:
        """The smallest valid `shares` of all devices."""


class Admission:
    """Answers reviews.

    Args:
        rules: What people may write.
        configuration: Name of both webhook configurations, for messages about what comes to the wrong place.
        templates: Where claim templates are kept.
        sizes: What GPUs there are.
    """

    def __init__(self, rules: Conversion, configuration: str, templates: Ensures, sizes: KnowsSizes) -> None:
        self._rules, self._configuration = rules, configuration
        self._templates, self._sizes = templates, sizes

    def cluster_is(self, kubernetes: str) -> None:
        """Convert for that Kubernetes from now on, e.g. `1.36`."""
        self._rules = self._rules.model_copy(update={"kubernetes": kubernetes})

    async def mutate(self, review: Review, deadline: float) -> Answer:
        """Convert a pod that is created; one that is applied again stays as it was converted."""
        where = f"the MutatingWebhookConfiguration {self._configuration} for /mutate"
        return await _answered(self._mutate(review, where, deadline), review)

    async def validate(self, review: Review, deadline: float) -> Answer:  # noqa: ARG002 - asks nobody
        """Hold a ResourceClaim or ResourceClaimTemplate against what our devices can give."""
        where = f"the ValidatingWebhookConfiguration {self._configuration} for /validate"
        return await _answered(self._validate(review, where), review)

    async def _mutate(self, review: Review, where: str, deadline: float) -> Answer:
        _refuse_unread(review)
        if _brings_nothing(review):
            return _beside_the_point(review, where)
        pod = _object(review, PODS, where)
        if review.subresource:
            return Answer()
        if review.operation == "UPDATE":
            return Answer(patch=reapplied(pod, review.old_object or {}, self._rules, self._known_sizes))
        fleet = self._sizes if self._sizes.synced else None
        made = convert(pod, self._rules, self._known_sizes, fleet=fleet)
        if made.templates:
            if not review.namespace:
                raise ReviewError("request.namespace: a pod is in a namespace, and it is not named")
            async with asyncio.timeout_at(deadline):
                await self._templates.ensure(review.namespace, made.templates, dry_run=review.dry_run)
            log.info(
                "converted",
                namespace=review.namespace,
                pod=_name(pod),
                templates=[template.name for template in made.templates],
                dry_run=review.dry_run,
            )
        return Answer(patch=(*made.patch, *after_plugin(pod, made, self._rules)), warnings=made.warnings)

    async def _validate(self, review: Review, where: str) -> Answer:
        _refuse_unread(review)
        if _brings_nothing(review):
            return _beside_the_point(review, where)
        obj, old = _object(review, CLAIMS, where), review.old_object or {}
        if review.subresource or (review.operation == "UPDATE" and obj.get("spec") == old.get("spec")):
            # A spec never changes. What is there already must stay free to lose its finalizer and go.
            return Answer()
        problems, warnings = validate(obj, self._rules, self._sizes.slots())
        return Answer(denied="; ".join(problems) or None, warnings=warnings, reason=INVALID if problems else "")

    def _known_sizes(self) -> Sequence[GpuSize]:
        if not self._sizes.synced:
            raise ApiUnavailable(
                "the ResourceSlices of the cluster, for the memory sizes of its GPUs, are not known yet"
            )
        return self._sizes.known()


async def _answered(answer: Awaitable[Answer], review: Review) -> Answer:
    """The answer, or the denial that an error means. Errors that aren't ours to foresee go on.

    An object that can't be admitted is 403, not 422: both show the message, but at 422 `kubectl apply --force` deletes the
    object that is there and makes it anew.
    """
    began = time.perf_counter()
    try:
        given = await answer
    except (AdmissionError, ApiError, TimeoutError) as error:
        given = replace(_denial(error), reason=reason(error))
    if given.denied is not None:
        say = log.error if given.result == "failed" else log.info
        say(
            given.result,
            kind=review.kind,
            namespace=review.namespace,
            name=_name(review.object or {}),
            why=given.reason,
            reason=given.denied[:LONGEST_MESSAGE],
            milliseconds=round((time.perf_counter() - began) * 1000, 2),
        )
    return given


def _denial(error: Exception) -> Answer:
    match error:
        case ReviewError():
            return Answer(denied=str(error), code=HTTPStatus.BAD_REQUEST)
        case TooSoon():
            # The API server hands this on as Retry-After: who asked waits, and nothing in the API server does.
            after = math.ceil(error.retry_after)
            return Answer(denied=str(error), code=HTTPStatus.TOO_MANY_REQUESTS, retry_after=after)
        case AdmissionError() | ApiDenied():
            return Answer(denied=str(error))
        case TimeoutError():
            words = "the API server did not take the pod's ResourceClaimTemplates in time; try again"
            return Answer(denied=words, code=HTTPStatus.GATEWAY_TIMEOUT)
        case ApiUnavailable() | ApiConflict():
            # The API server hands this on as Retry-After, and kubectl and controllers come back by themselves, some times.
            asked = error.retry_after if isinstance(error, ApiUnavailable) else None
            after = max(math.ceil(asked or 0), _RETRY_AFTER)
            return Answer(denied=f"{error}; try again", code=HTTPStatus.SERVICE_UNAVAILABLE, retry_after=after)
        case _:
            return Answer(denied=str(error), code=HTTPStatus.INTERNAL_SERVER_ERROR)


def _refuse_unread(review: Review) -> None:
    if review.refused:
        raise AdmissionError(review.refused)


def _brings_nothing(review: Review) -> bool:
    return review.operation in {"DELETE", "CONNECT"}


def _beside_the_point(review: Review, where: str) -> Answer:
    """No pod comes to be by this, so to deny it would only stop clean-up, or `kubectl exec`, for a mistake in `where`."""
    return Answer(warnings=[f"take operation {review.operation} out of {where}: nothing is done for it"])


def _object(review: Review, expected: Collection[tuple[str, str, str]], where: str) -> Mapping[str, Any]:
    if review.resource not in expected:
        group, version, resource = review.resource
        api = f"{group}/{version}" if group else version
        wanted = ", ".join(sorted({name for _, _, name in expected}))
        raise ReviewError(f"mend the rules of {where}: it is for {wanted}, and {resource or 'something'} of {api} came")
    if review.operation not in {"CREATE", "UPDATE"}:
        raise ReviewError("request.operation: must be CREATE, UPDATE, DELETE or CONNECT")
    if review.object is None:
        raise ReviewError(f"request.object: is missing, so it can't be judged; look at {where}")
    return review.object


def _name(obj: Mapping[str, Any]) -> str:
    metadata = fields.mapping(obj.get("metadata"))
    return str(metadata.get("name") or metadata.get("generateName") or "")[:253]
