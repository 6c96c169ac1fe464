"""kube.client and kube.resource_api: requests, errors and API versions, over real HTTP."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from hami_kubeletplugin.api.errors import (
    ApiConflict,
    ApiError,
    ApiForbidden,
    ApiInvalid,
    ApiNotFound,
    ApiNotServed,
    ApiUnavailable,
)
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.kube.call import TOKEN_LIFETIME, USER_AGENT, Call
from hami_kubeletplugin.kube.config import Access
from hami_kubeletplugin.kube.resource_api import KubeClient
from tests.unit.kube.fakes import CLAIM, new_slice
from tests.waiting import until


async def test_objects_are_found_by_name(server: ApiServer, client: KubeClient) -> None:
    """Claims, pods and nodes come as the server has them, one request each, under our User-Agent."""
    server.put("pods", {"metadata": {"namespace": "default", "name": "p1", "uid": "u2"}})
    server.put("nodes", {"metadata": {"name": "n1", "uid": "u3"}})
    assert (await client.get_claim("default", "c1"))["status"] == CLAIM["status"]
    assert (await client.get_pod("default", "p1"))["metadata"]["uid"] == "u2"
    assert (await client.get_node("n1"))["metadata"]["uid"] == "u3"
    assert server.requests.total() == 3
    assert server.last_headers["User-Agent"] == USER_AGENT


async def test_who_is_told_of_requests_hears_of_each(server: ApiServer) -> None:
    """Its verb, and what went wrong; a watch as soon as it has begun, or could not."""
    told: list[tuple[str, type[ApiError] | None]] = []
    client = KubeClient(
        Access(server.url), asked=lambda verb, error: told.append((verb, type(error) if error else None))
    )
    async with client:
        await client.get_claim("default", "c1")
        with pytest.raises(ApiNotFound):
            await client.get_claim("default", "none")
        watch = client.watch_slices("gpu.hami.io", "n1", "1")
        begun = asyncio.ensure_future(anext(watch))
        await until(lambda: ("watch", None) in told)
        begun.cancel()
        await asyncio.gather(begun, return_exceptions=True)
        server.fail(403, verb="watch")
        with pytest.raises(ApiForbidden):
            await anext(client.watch_slices("gpu.hami.io", "n1", "1"))
        await server.down()
        with pytest.raises(ApiUnavailable):
            await client.get_node("n1")
    assert [each for each in told if each[0] != "list"] == [
        ("get", None),
        ("get", ApiNotFound),
        ("watch", None),
        ("watch", ApiForbidden),
        ("get", ApiUnavailable),
    ]


async def test_a_cached_pod_is_asked_for_by_resource_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only with `cached` may the server answer from its cache, which resourceVersion=0 means in the Kubernetes API."""
    asked: list[Mapping[str, str] | None] = []

    async def ask(_: KubeClient, call: Call) -> dict[str, Any]:
        asked.append(call.query)
        return {}

    monkeypatch.setattr(KubeClient, "ask", ask)
    client = KubeClient(Access("http://server"))
    await client.get_pod("default", "p")
    await client.get_pod("default", "p", cached=True)
    assert asked == [None, {"resourceVersion": "0"}]


async def test_missing_claim_costs_one_request(server: ApiServer, client: KubeClient) -> None:
    """A claim that is not there is ApiNotFound after one request: no other API version is tried for it."""
    with pytest.raises(
        ApiNotFound, match=r"get resourceclaims.resource.k8s.io default/gone failed: .* not found \(404\)"
    ):
        await client.get_claim("default", "gone")
    assert server.requests["get", "resourceclaims"] == 1


async def test_names_cannot_leave_their_path(client: KubeClient) -> None:
    """A name with slashes or dots stays one path segment."""
    with pytest.raises(ApiNotFound):
        await client.get_claim("default", "../../../nodes/n1?x")


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [
        (400, ApiInvalid, "boom"),
        (401, ApiForbidden, "token or client certificate"),
        (403, ApiForbidden, "allow verb get on resourceclaims.resource.k8s.io in the ClusterRole"),
        (409, ApiConflict, "boom"),
        (422, ApiInvalid, "boom"),
        (429, ApiUnavailable, "boom"),
        (500, ApiUnavailable, "boom"),
        (503, ApiUnavailable, "boom"),
    ],
)
async def test_status_codes_become_errors(
    server: ApiServer, client: KubeClient, status: int, error: type[ApiError], says: str
) -> None:
    """Each status has its error; the message has verb, resource, name, and the server's own words."""
    server.fail(status, message="boom", headers={"Retry-After": "7"})
    with pytest.raises(error, match=r"get resourceclaims\.resource\.k8s\.io default/c1 failed: boom") as caught:
        await client.get_claim("default", "c1")
    assert says in str(caught.value)
    if isinstance(caught.value, ApiUnavailable):
        assert caught.value.retry_after == 7


async def test_server_that_is_away_and_back(server: ApiServer, client: KubeClient) -> None:
    """While nobody listens the error names the server; afterwards the same client works again."""
    await client.get_claim("default", "c1")
    await server.down()
    with pytest.raises(ApiUnavailable, match=f"{server.url} can't be reached"):
        await client.get_claim("default", "c1")
    await server.up()
    assert await client.get_claim("default", "c1")


async def test_slow_server_is_given_up(server: ApiServer) -> None:
    """A request that is not answered in time fails with the time in its message."""
    server.latency = 30
    async with KubeClient(Access(server.url), timeout=0.05) as client:
        with pytest.raises(ApiUnavailable, match=r"no answer in 0\.05 s"):
            await client.get_claim("default", "c1")


async def test_a_server_that_is_slow_gets_longer_each_time(server: ApiServer) -> None:
    """One that needs 12 s for each answer would never be heard in 10. Once it is quick again it is given up soon again."""
    server.latency = 0.5
    async with KubeClient(Access(server.url), timeout=0.2) as client:
        for seconds in ("0.2", "0.4"):
            with pytest.raises(ApiUnavailable, match=f"no answer in {seconds} s"):
                await client.server_version()
        for _ in range(3):
            await client.server_version()
        server.latency = 0
        for _ in range(3):
            await client.server_version()
        server.latency = 30
        with pytest.raises(ApiUnavailable, match=r"no answer in 0\.2 s"):
            await client.server_version()


async def test_a_server_that_drips_is_given_up() -> None:
    """The time is for the whole answer: a byte now and then doesn't keep anybody waiting."""

    async def drip(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b" ")
                await asyncio.sleep(0.02)
        return response

    async with something_else(drip) as url, KubeClient(Access(url), timeout=0.3) as client:
        with pytest.raises(ApiUnavailable, match=r"no answer in 0\.3 s"):
            await client.server_version()


async def test_many_claims_at_once(server: ApiServer, client: KubeClient) -> None:
    """16 claims are fetched at the same time, not one after another."""
    server.latency = 60
    claims = asyncio.gather(*(client.get_claim("default", "c1") for _ in range(16)))
    await until(lambda: server.requests["get", "resourceclaims"] == 16)
    claims.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claims


async def test_token_file_is_read_again(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that was replaced is used at the next reading, and at once when the old one is refused."""
    file = tmp_path / "token"
    file.write_text("old\n")
    server.token = "old"
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    async with KubeClient(Access(server.url, token_file=file)) as client:
        await client.get_claim("default", "c1")
        file.write_text("new\n")
        await client.get_claim("default", "c1")
        assert server.last_headers["Authorization"] == "Bearer old"
        now[0] += TOKEN_LIFETIME
        server.token = "new"
        before = server.requests.total()
        await client.get_claim("default", "c1")
        assert server.requests.total() == before + 1

        server.token = "newer"
        file.write_text("newer")
        await client.get_claim("default", "c1")
        file.unlink()
        now[0] += TOKEN_LIFETIME
        with pytest.raises(ApiUnavailable, match=f"token file {file} can't be read"):
            await client.get_claim("default", "c1")


@pytest.mark.parametrize("token", ["a\nb", "tok\u20ac"])
async def test_a_token_that_no_header_can_hold_is_an_error_that_says_so(
    server: ApiServer, tmp_path: Path, token: str
) -> None:
    """One of the API's, which all callers are prepared for."""
    file = tmp_path / "token"
    file.write_text(token)
    async with KubeClient(Access(server.url, token_file=file)) as client:
        with pytest.raises(ApiUnavailable, match=f"{file} holds something else than a token"):
            await client.get_claim("default", "c1")


async def test_answers_of_something_else(server: ApiServer) -> None:
    """A proxy that answers 200 with a page, or an error without a Status, gives an error and no crash."""
    answers = [
        web.Response(text="<html>"),
        web.json_response([]),
        web.json_response({}),
        web.json_response({"status": "ok"}),
        web.Response(status=520, text="?"),
    ]

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return answers.pop(0)

    async with something_else(answer) as url, KubeClient(Access(url)) as client:
        for says in ("not JSON", "is a list", "without kind, so", "without kind, so", r"\? \(520\)"):
            with pytest.raises(ApiUnavailable, match=says):
                await client.get_claim("default", "c1")


@contextlib.asynccontextmanager
async def something_else(answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """The URL of a server that is no API server."""
    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        host, port = runner.addresses[0]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def client_of(text: str) -> AsyncIterator[KubeClient]:
    """A client whose server has this answer for everything."""

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=text)

    async with something_else(answer) as url, KubeClient(Access(url)) as client:
        yield client


async def test_a_number_that_python_can_not_hold_is_an_error_of_the_object() -> None:
    """What a user may write into an opaque config never crashes us, and isn't asked for again as if the server were away."""
    async with client_of(f'{{"spec": {"9" * 5000}}}') as client:
        with pytest.raises(ApiError, match=r"get resourceclaims\S* default/c1 failed: .* can't be read") as refused:
            await client.get_claim("default", "c1")
        assert not isinstance(refused.value, ApiUnavailable)


async def test_what_is_nested_without_end_hides_nothing_else() -> None:
    """The API server takes thousands of levels in anybody's opaque config: the other objects of a list are still there."""
    deep = "[" * 4500 + "]" * 4500
    items = [
        f'{{"metadata": {{"name": "{name}", "uid": "u", "resourceVersion": "1"}}, "spec": {{"a": {spec}}}}}'
        for name, spec in (("a", deep), ("b", "1"))
    ]

    async with client_of(
        f'{{"kind": "ResourceSliceList", "items": [{", ".join(items)}], "metadata": {{"resourceVersion": "7"}}}}'
    ) as client:
        found = await client.list_slices("gpu.hami.io")
    assert [item["metadata"]["name"] for item in found.items] == ["a", "b"]
    assert (found.items[1]["spec"], found.resource_version) == ({"a": 1}, "7")


@pytest.mark.parametrize("served", ["v1", "v1beta2", "v1beta1"])
async def test_slices_look_the_same_in_every_version(server: ApiServer, client: KubeClient, served: str) -> None:
    """Whatever version the server has, slices go out and come back in their v1 form; two requests settle the version."""
    server.api_versions = (served,)
    wanted = new_slice()
    created = await client.create_slice(wanted)
    assert created["spec"] == wanted["spec"]
    assert server.all("resourceslices")[0]["spec"] == wanted["spec"]
    created["spec"]["pool"]["generation"] = 2
    assert (await client.update_slice(created))["spec"] == created["spec"]
    listed = await client.list_slices("gpu.hami.io", "n1")
    assert [item["spec"] for item in listed.items] == [created["spec"]]
    async with aclosing(client.watch_slices("gpu.hami.io", "n1", "1")) as events:
        assert [(await anext(events)).object["spec"] for _ in range(2)] == [wanted["spec"], created["spec"]]
    assert await client.get_claim("default", "c1")
    await client.delete_slice(listed.items[0])
    assert server.all("resourceslices") == []
    unserved = sum(n for (_, resource), n in server.requests.items() if resource.startswith("apis/"))
    assert unserved == ("v1", "v1beta2", "v1beta1").index(served)


async def test_upgrade_of_the_server(server: ApiServer, client: KubeClient) -> None:
    """A version that is no longer served is replaced without an error, and a new one used when /version changes."""
    server.version, server.api_versions = (1, 35), ("v1beta1",)
    await client.server_version()
    await client.create_slice(new_slice())
    server.api_versions = ("v1beta2", "v1")
    assert (await client.get_claim("default", "c1"))["apiVersion"] == "resource.k8s.io/v1"
    server.api_versions = ("v1beta2",)
    assert (await client.get_claim("default", "c1"))["apiVersion"] == "resource.k8s.io/v1beta2"
    server.version, server.api_versions = (1, 36), ("v1beta2", "v1")
    await client.server_version()
    assert (await client.get_claim("default", "c1"))["apiVersion"] == "resource.k8s.io/v1"


async def test_no_version_served(server: ApiServer, client: KubeClient) -> None:
    """A cluster without the API is told apart from a claim that is gone: nothing may be cleaned up because of it."""
    server.api_versions = ()
    with pytest.raises(ApiNotServed, match=r"1\.35 or newer"):
        await client.get_claim("default", "c1")
    assert not issubclass(ApiNotServed, ApiNotFound)


async def test_server_version_with_a_vendors_plus(server: ApiServer, client: KubeClient) -> None:
    """`36+`, as some vendors write the minor, is 36; something without numbers is an error."""
    server.version = (1, "36+")  # type: ignore[assignment]
    assert await client.server_version() == (1, 36)
    server.version = ("", "")  # type: ignore[assignment]
    with pytest.raises(ApiUnavailable, match="no major and minor"):
        await client.server_version()


async def test_writes_of_others_are_conflicts(client: KubeClient) -> None:
    """Update and delete do nothing to a slice that somebody changed since we saw it, or that is a new one."""
    ours = await client.create_slice(new_slice())
    theirs = {**ours, "spec": {**ours["spec"], "devices": []}}
    await client.update_slice(theirs)
    with pytest.raises(ApiConflict, match="update resourceslices"):
        await client.update_slice(ours)
    with pytest.raises(ApiConflict, match="delete resourceslices"):
        await client.delete_slice(ours)
    assert (await client.list_slices("gpu.hami.io", "n1")).items[0]["spec"].get("devices") == []


async def test_invalid_slice_is_refused_with_reasons(client: KubeClient) -> None:
    """A slice against the rules is ApiInvalid with the server's field paths."""
    wrong = new_slice()
    wrong["spec"]["devices"][0]["attributes"]["driverVersion"] = {"version": "535.104.05"}
    with pytest.raises(ApiInvalid, match=r"devices\[0\]\.attributes\[driverVersion\]"):
        await client.create_slice(wrong)
