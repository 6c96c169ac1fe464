"""The largest objects that somebody can send: what they cost grows no faster than they do, and ends where bounds begin."""

import asyncio
import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import pytest
import structlog

from bench.worst import CLAIMS, GPU, PODS, bodies, container, pod, updates
from hami_kubeletplugin.api.errors import ReviewError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.admission.answer import Admission
from hami_kubeletplugin.webhook.admission.review import decode, encode
from tests.unit.webhook.admission.https import FakeSizes, FakeTemplates, review

SIZE: Final = 100_000
TWICE: Final = 2.5
"""What twice as much may cost, with room for what is rounded."""
TIMES: Final = 20
"""Without bounds it was hundreds."""
MOST_STEPS: Final = 60
"""Lines of ours that run for each entry that is taken, at the most."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Lines of the log are not what is measured."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.configure(**before)


def answered(path: str, body: bytes, kubernetes: str = "1.35") -> dict[str, Any]:
    """The response; one with `malformed` if it was no review."""
    admission = Admission(Conversion.checked(kubernetes=kubernetes), "hami-webhook", FakeTemplates(), FakeSizes())
    try:
        read = decode(body)
    except ReviewError as error:
        return {"malformed": str(error)}
    judge = admission.mutate if path == "/mutate" else admission.validate
    response: dict[str, Any] = json.loads(encode(read.uid, asyncio.run(judge(read, 0))))["response"]
    return response


@contextmanager
def counted(steps: list[int]) -> Iterator[None]:
    """Counts lines of this program that run."""

    def line(_: FrameType, event: str, __: Any) -> Any:
        steps[0] += event == "line"
        return line

    def call(frame: FrameType, _: str, __: Any) -> Any:
        return line if "hami_kubeletplugin" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield
    finally:
        sys.settrace(before)


def steps_for(path: str, body: bytes) -> int:
    """Lines that run until it is answered."""
    steps = [0]
    with counted(steps):
        answered(path, body)
    return steps[0]


def seconds_for(path: str, body: bytes, enough: float = 0.0) -> float:
    """The least time of some tries; one is enough if it took no longer than that."""
    least = math.inf
    for _ in range(5):
        started = time.process_time()  # what other processes do meanwhile is not in it
        answered(path, body)
        least = min(least, time.process_time() - started)
        if least <= enough:
            break
    return least


def test_steps_grow_no_faster_than_the_object() -> None:
    """Of each worst body one twice as long takes at most twice the steps, and none takes more than the bounds allow."""
    most = steps_for("/mutate", next(bodies(0))[2])
    for (path, what, once), (_, _, twice) in zip(
        [*bodies(SIZE), *updates(SIZE)], [*bodies(2 * SIZE), *updates(2 * SIZE)], strict=True
    ):
        few, many = steps_for(path, once), steps_for(path, twice)
        assert many < TWICE * max(few, most), what
        assert many < MOST_STEPS * 5000, what


def test_time_grows_no_faster_than_the_object() -> None:
    """What runs below our lines counts too: no worst body takes many times as long as an ordinary large pod."""
    env = [{"name": f"V{number}", "value": "x"} for number in range(4000)]
    ordinary = json.dumps(review(pod(container(env=env)))).encode()
    plain = seconds_for("/mutate", ordinary)
    for path, what, body in (*bodies(1_000_000), *updates(1_000_000)):
        assert seconds_for(path, body, TIMES * plain) <= TIMES * plain, what


def test_each_is_answered_in_words() -> None:
    """Allowed, or refused in one line that says what is too much; never an error of the program, nor silence."""
    for path, what, body in (*bodies(SIZE), *updates(SIZE)):
        response = answered(path, body)
        if "malformed" not in response and not response["allowed"]:
            message = response["status"]["message"]
            assert message.isprintable(), what
            assert len(message) <= 8192, what


def test_bodies_that_would_take_long_to_decode() -> None:
    """They are refused by the number of their values, before they are decoded, and the answer gets to who sent them."""
    for make in (PODS["empty lists"], PODS["fractions"], PODS["tolerations"]):
        response = answered("/mutate", next(_one("/mutate", make(1_000_000))))
        assert not response["allowed"]
        assert (
            "values (commas and opening brackets), at most 60000 are taken: make it smaller"
            in response["status"]["message"]
        )
    claim = answered("/validate", next(_one("/validate", CLAIMS["requests"](4_000_000))))
    assert claim["status"]["code"] == 403
    with pytest.raises(ReviewError, match="at most 60000 are taken"):
        decode(b"[" + b"1," * 100_000 + b"1]")


def test_numbers_that_would_take_long_to_read() -> None:
    """To read digits takes the square of their number, so what no float holds is no number."""
    for digits in ("9" * 401, "1" * 401 + ".5", "-" + "9" * 401):
        body = json.dumps(review(pod(container()))).replace('"i"', digits).encode()
        with pytest.raises(ReviewError, match="a number is too l"):
            decode(body)
    assert decode(json.dumps(review(pod(container()))).replace('"i"', "9" * 300).encode()).object


def test_what_is_refused_was_not_worth_it() -> None:
    """An ordinary pod of the same bytes, in long values, is converted."""
    long = pod(container(env=[{"name": f"V{number}", "value": "x" * 1000} for number in range(1000)], limits=GPU))
    assert answered("/mutate", json.dumps(review(long)).encode())["allowed"]


def _one(path: str, obj: dict[str, Any]) -> Iterator[bytes]:
    resource = {"group": "resource.k8s.io", "version": "v1", "resource": "resourceclaims"}
    yield json.dumps(review(obj, **({"resource": resource} if path == "/validate" else {}))).encode()
