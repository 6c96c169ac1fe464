"""Whatever JSON something in front of the API server answers with, it is an error of the API, and never the end of the daemon."""

import json
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hami_kubeletplugin.api.errors import ApiError
from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.kube.client import _event
from hami_kubeletplugin.kube.config import Access
from hami_kubeletplugin.kube.resource_api import KubeClient, kept
from hami_kubeletplugin.publish.observed import Observed

KEYS = ["kind", "metadata", "items", "spec", "devices", "basic", "name", "uid", "resourceVersion", "continue"]
KEYS += ["gitVersion", "major", "minor", "type", "object", "code", "message", "details", "status"]
leaf = st.none() | st.booleans() | st.integers(-9, 999) | st.sampled_from(["", "x", "7", "ERROR", "ADDED", "BOOKMARK"])
odd = st.recursive(
    leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
)
metadata = st.fixed_dictionaries({}, optional=dict.fromkeys(("name", "uid", "resourceVersion", "continue"), odd))
nearly = st.fixed_dictionaries(
    {"kind": odd}, optional={"metadata": metadata | odd, "items": odd | st.lists(odd, max_size=2), "spec": odd}
)
answers = odd | nearly | st.fixed_dictionaries({"kind": odd, "metadata": metadata, "items": st.lists(nearly | odd)})


class Odd(KubeClient):
    """What is answered to everything, with one status."""

    def __init__(self, status: int, answer: Any) -> None:
        super().__init__(Access("http://server"))
        self.found: tuple[int, dict[str, str], bytes] = status, {}, json.dumps(answer).encode()

    async def _exchange(self, *_: object) -> tuple[int, dict[str, str], bytes]:
        return self.found


@given(st.sampled_from([200, 201, 400, 404, 500]), answers)
async def test_odd_answers_are_errors_of_the_api(status: int, answer: Any) -> None:
    """Lists without items or with odd ones, objects without a name, versions that are numbers, errors without a reason."""
    client = Odd(status, answer)
    sent = {"metadata": {"name": "s", "uid": "u", "resourceVersion": "1"}, "spec": {}}
    with suppress(ApiError):
        Observed.of(await client.list_slices("d", "n"))
    for ask in (
        client.server_version,
        lambda: client.get_node("n"),
        lambda: client.get_claim("ns", "c"),
        lambda: client.create_slice(sent),
        lambda: client.update_slice(sent),
        lambda: client.delete_slice(sent),
    ):
        with suppress(ApiError):
            await ask()
    with suppress(ApiError):
        pages = client.slice_pages("d")
        await kept(pages, lambda item: item) if "continue" not in json.dumps(answer) else await anext(pages)


@given(odd | st.fixed_dictionaries({"type": odd, "object": odd | nearly}))
def test_odd_lines_of_a_watch_are_errors_of_the_api(line: Any) -> None:
    """Objects that are none, errors without a code, events of no kind."""
    with suppress(ApiError):
        event = _event(Call("watch", "things", "/things"), json.dumps(line).encode())
        assert event.object["metadata"]["resourceVersion"]
