"""AdmissionReviews in, answers out, without HTTP."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.api.errors import ReviewError
from hami_kubeletplugin.webhook.admission.review import LONGEST_WARNING, Answer, decode, encode
from tests.unit.webhook.admission.https import MALFORMED, pod, review


def answered(answer: Answer) -> dict[str, Any]:
    """The response in an encoded answer."""
    text = encode("u1", answer)
    response: dict[str, Any] = json.loads(text)["response"]
    assert response.pop("uid") == "u1"
    return response


def test_a_review_of_the_api_server() -> None:
    """All that is needed is read from the request, the namespace from the request and not from the object."""
    obj = pod(cpu="1") | {"metadata": {"namespace": "elsewhere"}}
    read = decode(
        json.dumps(review(obj, dryRun=True, subResource="resize", operation="UPDATE", oldObject=obj)).encode()
    )
    assert (read.uid, read.operation, read.resource) == ("705ab4f5", "UPDATE", ("", "v1", "pods"))
    assert (read.subresource, read.kind, read.namespace, read.dry_run) == ("resize", "Pod", "team", True)
    assert read.object == read.old_object == obj


def test_absent_fields_are_as_in_go() -> None:
    """What the API server leaves out or sends as null has Go's zero value."""
    read = decode(b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","dryRun":null}}')
    assert (read.dry_run, read.object, read.namespace, read.resource) == (False, None, "", ("", "", ""))


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed(body: bytes) -> None:
    """What is no AdmissionReview v1 is refused in a few words that don't repeat what was sent."""
    with pytest.raises(ReviewError) as refused:
        decode(body)
    assert 10 < len(str(refused.value)) < 200


@given(st.binary(max_size=200))
def test_any_bytes(body: bytes) -> None:
    """Bytes are a review or a ReviewError, nothing else."""
    with pytest.raises(ReviewError):
        decode(body)


def test_allowed_as_it_is() -> None:
    """No patch and no patch type: the API server refuses one without the other."""
    assert answered(Answer()) == {"allowed": True}


def test_a_patch() -> None:
    """A patch is a JSONPatch in base64."""
    operation = {"op": "add", "path": "/spec/resourceClaims", "value": [{"name": "gpu-main"}]}
    response = answered(Answer(patch=[operation]))
    assert (response["allowed"], response["patchType"]) == (True, "JSONPatch")
    assert json.loads(base64.b64decode(response["patch"])) == [operation]


def test_a_denial() -> None:
    """A denial has the message as it is, since the API server says who denied, and code and reason for clients."""
    response = answered(Answer(denied="spec.nodeName: no", code=503, retry_after=2, patch=[{"op": "add"}]))
    assert response == {
        "allowed": False,
        "status": {
            "status": "Failure",
            "message": "spec.nodeName: no",
            "code": 503,
            "reason": "ServiceUnavailable",
            "details": {"retryAfterSeconds": 2},
        },
    }
    assert answered(Answer(denied="no"))["status"]["reason"] == "Forbidden"
    assert len(answered(Answer(denied="x" * 100_000))["status"]["message"]) <= 8192


@given(st.lists(st.text(st.characters(), max_size=400), max_size=40))
def test_warnings_fit(warnings: list[str]) -> None:
    """Warnings keep the API server's limits and have no control characters, whatever is in them; none vanishes silently."""
    shown = answered(Answer(warnings=warnings)).get("warnings", [])
    assert all(len(text.encode()) <= LONGEST_WARNING for text in shown)
    assert sum(len(text) for text in shown) <= 4096
    assert all(character.isprintable() or ord(character) > 0x9F for text in shown for character in text)
    if len(shown) < len(warnings):
        assert shown[-1] == f"and {len(warnings) - len(shown) + 1} more warnings"


def test_a_long_warning_is_cut_between_characters() -> None:
    """What is too long ends in dots, and a letter of several bytes stays whole."""
    (shown,) = answered(Answer(warnings=["€" * 100]))["warnings"]
    assert shown == "€" * 84 + "..."


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (Answer(), "allowed"),
        (Answer(patch=[{"op": "add"}]), "converted"),
        (Answer(denied="no"), "denied"),
        (Answer(denied="no", code=400), "denied"),
        (Answer(denied="no", code=504), "failed"),
    ],
)
def test_results_for_the_metrics(answer: Answer, result: str) -> None:
    """People's mistakes are `denied`, our trouble is `failed`."""
    assert answer.result == result
