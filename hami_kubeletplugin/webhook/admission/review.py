"""AdmissionReviews: what the API server sends, and what it takes for an answer. Pure.

Contract: k8s.io/api admission/v1 types.go; how answers are judged: k8s.io/apiserver pkg/admission/plugin/webhook
request/admissionreview.go (VerifyAdmissionResponse) and errors/statuserror.go (ToStatusErr); how warnings are cut: pkg/endpoints/
filters/warning.go.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal, NoReturn

from hami_kubeletplugin.api.errors import ReviewError
from hami_kubeletplugin.webhook.conversion.convert import Operation

Object = Mapping[str, Any]

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
LONGEST_WARNING: Final = 256
"""Bytes. The API server cuts at as many characters once all warnings of a request have more than 4096."""
MOST_WARNINGS: Final = 15
"""So many of that length, and a last one that counts the rest, stay below 4096."""
LONGEST_MESSAGE: Final = 8192
"""Characters of a denial: somebody reads it in a terminal."""

_REASONS: Final[Mapping[int, str]] = {
    HTTPStatus.BAD_REQUEST: "BadRequest",
    HTTPStatus.FORBIDDEN: "Forbidden",
    HTTPStatus.TOO_MANY_REQUESTS: "TooManyRequests",
    HTTPStatus.INTERNAL_SERVER_ERROR: "InternalError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailable",
    HTTPStatus.GATEWAY_TIMEOUT: "Timeout",
}
"""metav1.StatusReason for each code that we deny with; kubectl shows it."""
MOST_VALUES: Final = 60_000
"""Commas and opening brackets of one review: its values, and what of JSON is text in annotations. To decode so many takes some
50 ms, in which nobody else is answered. A variable of a container has 14 of them with its managed fields and what kubectl last
applied, so a pod may have 4000 of them, and half as many when it is applied again."""
_LONGEST_NUMBER: Final = 400
"""Digits. To read them takes the square of their number; floats end below 310."""
_UID: Final = re.compile(rb'"request":\s*\{\s*"uid":\s*"([-0-9A-Za-z]{1,64})"')
"""Where the API server writes it."""
_HEAD: Final = 512
"""Bytes in which that is."""
_NAMESPACE: Final = re.compile(r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_HALF_OF_A_PAIR: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_INFINITE: Final = frozenset((float("inf"), float("-inf")))


@dataclass(frozen=True, slots=True)
class Review:
    """One request of the API server.

    Attributes:
        uid: Of the request; its answer carries it.
        operation: CREATE, UPDATE, DELETE or CONNECT.
        resource: Group, version and resource of what is asked for, e.g. `("", "v1", "pods")`.
        subresource: E.g. `resize`; empty for the object itself.
        kind: Of the object, for messages.
        namespace: Where it is; empty for objects outside of namespaces. The object need not say.
        dry_run: Nothing may be left behind.
        object: As it is to be; None for DELETE and CONNECT.
        old_object: As it was; None for CREATE and CONNECT.
        refused: Why it was not read any further than its `uid`; empty: it was.
    """

    uid: str
    operation: str = ""
    resource: tuple[str, str, str] = ("", "", "")
    subresource: str = ""
    kind: str = ""
    namespace: str = ""
    dry_run: bool = False
    object: Object | None = None
    old_object: Object | None = None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What becomes of a request; allowed as it is, unless something is said.

    Attributes:
        patch: What to change.
        warnings: For the person who asked, allowed or not.
        denied: Why not; the API server puts "admission webhook ... denied the request:" before it.
        code: The HTTP code that the person's client gets with it.
        retry_after: Seconds after which a client shall try again by itself, as client-go does.
        reason: Why it is denied, in one word, for metrics.
    """

    patch: Sequence[Operation] = ()
    warnings: Sequence[str] = ()
    denied: str | None = None
    code: int = HTTPStatus.FORBIDDEN
    retry_after: int | None = None
    reason: str = ""

    @property
    def result(self) -> Literal["allowed", "converted", "denied", "busy", "failed"]:
        """In one word: `denied` for what its author has to mend, `busy` for what came too soon, `failed` for our trouble."""
        if self.denied is None:
            return "converted" if self.patch else "allowed"
        if self.code == HTTPStatus.TOO_MANY_REQUESTS:
            return "busy"
        return "failed" if self.code >= HTTPStatus.INTERNAL_SERVER_ERROR else "denied"


def decode(body: bytes) -> Review:
    """Read a request.

    Raises:
        ReviewError: No JSON, or no AdmissionReview v1 with a request in it; the text is short.
    """
    values = sum(map(body.count, (b",", b"{", b"[")))
    if values > MOST_VALUES:
        return _unread(body, values)
    review = _decoded(body)
    if not isinstance(review, dict):
        raise ReviewError(f"must be an {KIND} object, not {_named(review)}")
    if (review.get("apiVersion"), review.get("kind")) != (API_VERSION, KIND):
        raise ReviewError(f"apiVersion and kind: must be {API_VERSION} {KIND}; see admissionReviewVersions")
    request = _field(review, "request", dict, "", None)
    uid = _field(request, "uid", str, "request.", None)
    if not uid:
        raise ReviewError("request.uid: must not be empty")
    resource = _field(request, "resource", dict, "request.", {})
    namespace = _field(request, "namespace", str, "request.", "")
    if not _NAMESPACE.fullmatch(namespace):
        raise ReviewError("request.namespace: must be the name of a namespace")
    return Review(
        uid=uid,
        operation=_field(request, "operation", str, "request.", ""),
        resource=(
            _field(resource, "group", str, "request.resource.", ""),
            _field(resource, "version", str, "request.resource.", ""),
            _field(resource, "resource", str, "request.resource.", ""),
        ),
        subresource=_field(request, "subResource", str, "request.", ""),
        kind=_field(_field(request, "kind", dict, "request.", {}), "kind", str, "request.kind.", ""),
        namespace=namespace,
        dry_run=_field(request, "dryRun", bool, "request.", False),
        object=_field(request, "object", dict, "request.", {}) or None,
        old_object=_field(request, "oldObject", dict, "request.", {}) or None,
    )


def _unread(body: bytes, values: int) -> Review:
    """A review that its author can be told about: the text of an HTTP error would not get further than the API server."""
    counted = f"some {values} values (commas and opening brackets)"
    reason = f"the object has {counted}, at most {MOST_VALUES} are taken: make it smaller"
    uid = _UID.search(body[:_HEAD])
    if uid is None:
        raise ReviewError(reason)
    return Review(uid[1].decode(), refused=reason)


def encode(uid: str, answer: Answer) -> bytes:
    """The answer as the API server takes it."""
    response: dict[str, Any] = {"uid": uid, "allowed": answer.denied is None}
    if answer.denied is not None:
        response["status"] = _status(answer.denied, answer)
    elif answer.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(answer.patch, separators=(",", ":")).encode()).decode()
    if answer.warnings:
        response["warnings"] = list(_warnings(answer.warnings))
    review = {"apiVersion": API_VERSION, "kind": KIND, "response": response}
    return json.dumps(review, separators=(",", ":")).encode()


def _status(message: str, answer: Answer) -> dict[str, Any]:
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[: LONGEST_MESSAGE - 3]}..."
    status: dict[str, Any] = {"status": "Failure", "message": message, "code": int(answer.code)}
    if answer.code in _REASONS:
        status["reason"] = _REASONS[answer.code]
    if answer.retry_after is not None:
        status["details"] = {"retryAfterSeconds": answer.retry_after}
    return status


def _warnings(warnings: Sequence[str]) -> Iterator[str]:
    shown = warnings if len(warnings) <= MOST_WARNINGS + 1 else warnings[:MOST_WARNINGS]
    for warning in shown:
        # A control character makes the API server drop the whole warning.
        text = _CONTROL.sub(" ", warning).encode("utf-8", "replace")
        if len(text) > LONGEST_WARNING:
            text = text[: LONGEST_WARNING - 3].decode(errors="ignore").encode() + b"..."
        yield text.decode()
    if len(shown) < len(warnings):
        yield f"and {len(warnings) - len(shown)} more warnings"


def _decoded(body: bytes) -> Any:
    try:
        text = body.decode()
        decoded = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_short)
        if _HALF_OF_A_PAIR.search(body):
            # Half of a surrogate pair is no character, and what we make of such a text could not be sent anywhere.
            json.dumps(decoded, ensure_ascii=False).encode()
    except UnicodeError:
        raise ReviewError("the body must be JSON in UTF-8") from None
    except RecursionError:
        raise ReviewError("the body must be JSON, nested less deeply") from None
    except ValueError as error:
        raise ReviewError(f"the body must be JSON: {str(error)[:100]}") from None
    return decoded


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _short(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError("a number is too large")
    return int(digits)


def _finite(digits: str) -> float:
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError("a number is too long")
    number = float(digits)
    if number in _INFINITE:
        raise ValueError("a number is too large")
    return number


def _field(parent: Mapping[str, Any], name: str, kind: type, where: str, default: Any) -> Any:
    """A field of a certain type; absent and null are the same, as for Go. No default: it has to be there."""
    value = parent.get(name)
    if value is None:
        value = default
    if not isinstance(value, kind):
        raise ReviewError(f"{where}{name}: must be {_TYPES[kind]}, not {_named(value)}")
    return value


_TYPES: Final[Mapping[type, str]] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    type(None): "missing",
}


def _named(value: object) -> str:
    return _TYPES[type(value)]
