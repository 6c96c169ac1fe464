"""One request to the API server, and what its answer means. Pure: who sends it is said in `client` and `blocking`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from hami_kubeletplugin import __version__
from hami_kubeletplugin.api.errors import (
    ApiConflict,
    ApiDenied,
    ApiError,
    ApiExpired,
    ApiForbidden,
    ApiInvalid,
    ApiNotFound,
    ApiNotServed,
    ApiUnavailable,
)
from hami_kubeletplugin.kube import nesting

Object = dict[str, Any]

USER_AGENT: Final = f"hami-kubeletplugin/{__version__}"
TOKEN_LIFETIME: Final = 60.0
"""Seconds until a token file is read again: bound tokens are replaced while the old one still works for minutes."""
KEEP_ALIVE: Final = 60.0
"""Seconds that an idle connection is kept for; kube-apiserver closes them after 90."""
METHODS: Final = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}
_ERRORS: Final[Mapping[int, type[ApiError]]] = {
    HTTPStatus.UNAUTHORIZED: ApiForbidden,
    HTTPStatus.FORBIDDEN: ApiForbidden,
    HTTPStatus.NOT_FOUND: ApiNotFound,
    HTTPStatus.CONFLICT: ApiConflict,
    HTTPStatus.GONE: ApiExpired,
}


@dataclass(frozen=True, slots=True)
class Call:
    """One request, in the words of RBAC, so that errors can say what was tried.

    Attributes:
        verb: get, list, watch, create, update, patch or delete.
        resource: With its group, e.g. `resourceclaims.resource.k8s.io`.
        path: On the server, already escaped.
        name: `namespace/name`, a name, or empty.
        query: Parameters.
        content_type: Of the body; a patch says by it what kind it is.
        mark: A field that every object has which the API server may answer with: proxies in front of it answer `{}` with 200.
    """

    verb: str
    resource: str
    path: str
    name: str = ""
    query: Mapping[str, str] | None = None
    content_type: str = "application/json"
    mark: str = "kind"

    def __str__(self) -> str:
        return f"{self.verb} {self.resource} {self.name}".rstrip()


def object_of(call: Call, text: bytes, mark: str | None = None) -> Object:
    """The object in an answer.

    Args:
        call: What was asked.
        text: The answer.
        mark: A field that it must have, if another than the call's.

    Raises:
        ApiUnavailable: It is no object, so something else than the API server sent it.
        ApiError: It is one that can't be read.
    """
    try:
        decoded = _decoded(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ApiUnavailable(
            f"{call} failed: the answer is not JSON, so something else than the API server sent it"
        ) from error
    except (ValueError, RecursionError) as error:  # JSON, but with numbers beyond what Python takes
        raise ApiError(
            f"{call} failed: the object can't be read, look at what somebody wrote into it: {error}"
        ) from error
    if not isinstance(decoded, dict):
        raise ApiUnavailable(f"{call} failed: the answer is a {type(decoded).__name__}, not an object")
    if (mark or call.mark) not in decoded:
        raise ApiUnavailable(
            f"{call} failed: the answer is an object without {mark or call.mark}, so something else than the API server sent it"
        )
    return decoded


def whole(call: Call, found: Any, *fields: str) -> Object:
    """An object as only the API server sends it: with these texts in its metadata, and no form that we would stumble over.

    Raises:
        ApiUnavailable: It is none.
    """
    metadata = found.get("metadata") if isinstance(found, dict) else None
    texts = metadata if isinstance(metadata, dict) else {}
    lacking = [field for field in fields if not isinstance(texts.get(field), str) or not texts[field]]
    spec = found.get("spec", {}) if isinstance(found, dict) else None
    if lacking or not isinstance(spec, dict):
        what = f"an object without metadata.{lacking[0]}" if lacking else "an object with a spec that is none"
        raise ApiUnavailable(f"{call} failed: the answer has {what}, so something else than the API server sent it")
    return dict(found)


def items_of(call: Call, answer: Object, *fields: str) -> list[Object]:
    """The objects in a list, each with these texts in its metadata.

    Raises:
        ApiUnavailable: It is no list of such objects.
    """
    whole(call, answer, "resourceVersion")
    items = answer.get("items") or []
    if not isinstance(items, list):
        raise ApiUnavailable(f"{call} failed: the answer is no list, so something else than the API server sent it")
    return [whole(call, item, *fields) for item in items]


def _decoded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(nesting.cut(text))


def error_of(call: Call, status: int, headers: Mapping[str, str], text: bytes) -> ApiError:
    """The error that an answer of status 400 or more means; the message has the server's reason and what to do."""
    try:
        answer = json.loads(text)
        reason, details = str(answer["message"]), answer.get("details") or {}
    except (ValueError, TypeError, KeyError, RecursionError):
        reason, details = text.decode(errors="replace").strip()[:200] or "no reason given", {}
    message = f"{call} failed: {reason} ({status})"
    if status == HTTPStatus.NOT_FOUND and not details.get("name"):
        return ApiNotServed(message)
    if status in _ERRORS:
        hint = ""
        if status == HTTPStatus.FORBIDDEN:
            if _no_matter_of_rights(reason, details):
                return ApiDenied(message)
            hint = f"; allow verb {call.verb} on {call.resource} in the ClusterRole"
        elif status == HTTPStatus.UNAUTHORIZED:
            hint = "; the token or client certificate is not, or no longer, valid"
        return _ERRORS[status](message + hint)
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        after = headers.get("Retry-After", "")
        return ApiUnavailable(message, float(after) if after.isdecimal() else None)
    return ApiInvalid(message)


def _no_matter_of_rights(reason: str, details: Mapping[str, Any]) -> bool:
    """Admission says 403 too: a namespace that is being deleted (it has a cause then, which RBAC never has), a quota."""
    return bool(details.get("causes")) or "exceeded quota" in reason
