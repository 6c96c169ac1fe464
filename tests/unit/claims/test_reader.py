"""Which pods are read from the API server's cache, and when that is not trusted."""

import copy
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from hami_kubeletplugin.api.errors import ApiError, ApiForbidden
from hami_kubeletplugin.api.names import DRIVER, POD_CLAIM_NAME
from hami_kubeletplugin.claims.pods import Pod
from hami_kubeletplugin.claims.reader import ClaimApi, ClaimReader, PodGuess
from hami_kubeletplugin.kube.claim_api import Wanted
from tests.unit.claims.node import Api
from tests.unit.claims.objects import NAMESPACE, NODE, Json, claim, container, pod, ref, result


def reader(api: ClaimApi, guess: PodGuess | None = None, closing: threading.Event | None = None) -> ClaimReader:
    """One for a call of the kubelet."""
    deadline = time.monotonic() + 5
    return ClaimReader(api, driver=DRIVER, node=NODE, deadline=deadline, guess=guess or PodGuess(), closing=closing)


def pods(api: Api, obj: Json) -> list[Pod]:
    """The pods of a claim, as a call of the kubelet reads them."""
    its = reader(api)
    return its.pods(its.claim(ref(obj)))


def test_the_only_pod_comes_from_the_cache() -> None:
    """A bound pod is read once, from the cache, though the API server has a newer one with another phase."""
    api, obj = Api(), claim("c", [result()])
    api.put(obj, pod("p", container("x", "c"), phase="Running"))
    api.outdated = {(NAMESPACE, "p"): pod("p", container("x", "c"), phase="Pending")}
    api.pods.clear()
    (found,) = pods(api, obj)
    assert [c.name for c in found.containers] == ["x"]
    assert api.gets == 2


def _not_bound(cached: Json) -> Json:
    del cached["spec"]["nodeName"]
    return cached


def _of_another_pod(cached: Json) -> Json:
    cached["metadata"]["uid"] = "of-its-predecessor"
    return cached


@pytest.mark.parametrize("change", [_not_bound, _of_another_pod, lambda _: None])
def test_a_cache_that_lags_is_not_trusted(change: Callable[[Json], Json | None]) -> None:
    """A pod that the cache shows before its binding, shows its predecessor for, or lacks, is read as it is."""
    api, obj = Api(), claim("c", [result()])
    current = pod("p", container("x", "c"))
    api.put(obj, current)
    cached = change(copy.deepcopy(current) | {"status": {}})
    if cached is not None:
        cached["spec"]["containers"] = []
    api.outdated = {} if cached is None else {(NAMESPACE, "p"): cached}
    (found,) = pods(api, obj)
    assert [c.name for c in found.containers] == ["x"]


def test_a_server_that_is_away_is_asked_every_other_second() -> None:
    """The pause doubles from a tenth of a second, and ends at two: pods wait for this, so it must not double for ever."""
    api, obj = Api(), claim("c", [result()])
    api.put(obj, pod("p", container("x", "c")))
    api.away = True
    pauses: list[float] = []

    class NeverClosing(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            pauses.append(timeout)
            api.away = len(pauses) < 12
            return False

    its = reader(api, closing=NeverClosing())
    assert its.pods(its.claim(ref(obj)))
    assert pauses[0] <= 0.1
    assert all(1 <= pause <= 2 for pause in pauses[5:12])


def test_several_pods_are_read_as_they_are() -> None:
    """Beside another pod the phase matters: a pod that has finished does not count, whatever the cache still shows."""
    api, obj = Api(), claim("c", [result()], pods=("done", "next"))
    api.outdated = {(NAMESPACE, name): pod(name, container("x", "c")) for name in ("done", "next")}
    api.put(obj, pod("done", container("x", "c"), phase="Succeeded"), pod("next", container("x", "c")))
    assert [found.ref.name for found in pods(api, obj)] == ["next"]


def generated(name: str, its_pod: str, in_pod: str) -> Json:
    """A claim that was made from a template for a pod."""
    obj = claim(name, [result()], pods=(its_pod,))
    obj["metadata"]["annotations"] = {POD_CLAIM_NAME: in_pod}
    return obj


class Counting(Api):
    """An API that notes what was asked for together."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[str]] = []

    def ask(self, wanted: Sequence[Wanted], *, deadline: float) -> list[Json | ApiError]:
        """See `ClaimApi`."""
        self.asked.append([f"{one.kind} {one.name}" for one in wanted])
        return super().ask(wanted, deadline=deadline)


def test_a_generated_claim_and_its_pod_are_asked_for_at_once() -> None:
    """The pod's name stands in that of its claim, so nobody waits for the claim to ask for the pod."""
    api, obj = Counting(), generated("train-0-gpu-x2x4z", "train-0", "gpu")
    api.put(obj, pod("train-0", container("x", obj["metadata"]["name"])))
    (found,) = pods(api, obj)
    assert found.ref.name == "train-0"
    assert api.asked == [["claim train-0-gpu-x2x4z", "cached pod train-0"]]


def test_how_pods_call_their_claims_is_learned() -> None:
    """A name with a dash in it is guessed wrongly once, which costs what no guess costs, and rightly from then on."""
    api, guess = Counting(), PodGuess()
    for number in (1, 2):
        obj = generated(f"p-{number}-gpu-main-x2x4z", f"p-{number}", "gpu-main")
        api.put(obj, pod(f"p-{number}", container("x", obj["metadata"]["name"])))
        its = reader(api, guess)
        assert its.pods(its.claim(ref(obj)))
    assert api.asked == [
        ["claim p-1-gpu-main-x2x4z", "cached pod p-1-gpu"],
        ["cached pod p-1"],
        ["claim p-2-gpu-main-x2x4z", "cached pod p-2"],
    ]


@pytest.mark.parametrize("change", [_not_bound, _of_another_pod])
def test_a_wrong_guess_is_not_trusted(change: Callable[[Json], Json]) -> None:
    """A pod of that name which is not bound, or another one, only costs a request."""
    api, obj = Counting(), generated("p-gpu-x2x4z", "p", "gpu")
    current = pod("p", container("x", obj["metadata"]["name"]))
    api.put(obj, current)
    api.outdated = {(NAMESPACE, "p"): change(copy.deepcopy(current)) | {"status": {}}}
    api.outdated[NAMESPACE, "p"]["spec"]["containers"] = []
    (found,) = pods(api, obj)
    assert [c.name for c in found.containers] == ["x"]


def test_an_error_about_a_guess_is_nobodys_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the API server says of an object that may not exist fails no claim."""
    api, obj = Api(), generated("other-gpu-x2x4z", "p", "gpu")
    api.put(obj, pod("p", container("x", obj["metadata"]["name"])))
    real = api.ask

    def ask(wanted: Sequence[Wanted], *, deadline: float) -> list[Json | ApiError]:
        answers = real(wanted, deadline=deadline)
        return [
            ApiForbidden("no") if one.name == "other" else answer for one, answer in zip(wanted, answers, strict=True)
        ]

    monkeypatch.setattr(api, "ask", ask)
    assert [found.ref.name for found in pods(api, obj)] == ["p"]


@pytest.mark.parametrize(
    ("claim_name", "expected"),
    [
        ("train", None),
        ("train-gpu", None),
        ("train-x2x4z", None),
        ("train-gpu-x2x4z", "train"),
        ("a-b-gpu-x2x4z", "a-b"),
        ("", None),
        ("-----", None),
        ("a-main-x2x4z", "a"),
        ("a-gpu-main-x2x4z", "a"),
        ("gpu-main-x2x4z", "gpu"),
    ],
)
def test_guesses(claim_name: str, expected: str | None) -> None:
    """Names that were not generated give none; a name that is known to be a claim's in its pod is taken off whole."""
    guess = PodGuess()
    guess.learn({"metadata": {"annotations": {POD_CLAIM_NAME: "gpu-main"}}})
    assert guess.pod_of(claim_name) == expected


def test_what_is_learned_is_bounded() -> None:
    """A tenant who calls his claims by a thousand names costs nobody memory or time."""
    guess = PodGuess()
    for number in range(1000):
        guess.learn({"metadata": {"annotations": {POD_CLAIM_NAME: f"name-{number}"}}})
    assert guess.pod_of("p-name-999-x2x4z") == "p"
    assert guess.pod_of("p-name-0-x2x4z") == "p-name"


def test_names_are_learned_while_others_guess() -> None:
    """By other threads: a guess in the middle must not become a claim's error."""
    guess = PodGuess()
    for number in range(3):
        guess.learn({"metadata": {"annotations": {POD_CLAIM_NAME: f"name{number}"}}})

    class Claim(str):
        """Is looked at while another thread learns."""

        __slots__ = ()

        def rpartition(self, separator: str) -> tuple[str, str, str]:
            base, dash, suffix = super().rpartition(separator)
            return Claim(base), dash, suffix

        def endswith(self, *_: object) -> bool:
            guess.learn({"metadata": {"annotations": {POD_CLAIM_NAME: "new"}}})
            return False

    assert guess.pod_of(Claim("pod-gpu-abcde")) == "pod"
