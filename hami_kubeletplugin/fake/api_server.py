"""A small Kubernetes API server in this process, over real HTTP: for the demo and the unit tests.

    async with ApiServer(version=(1, 37)) as server:
        server.put("nodes", {"metadata": {"name": "n1"}})
        server.put("resourceclaims", {"metadata": {"namespace": "default", "name": "c1"}, "status": {...}})
        ... talk to server.url ...
        assert server.requests["get", "resourceclaims"] == 1

It speaks the part of the protocol that this program uses: get, list (whole or in pages), watch, create, update, patch, delete
and deletecollection, with resource versions, conflicts and field selectors, for the kinds in `api_kinds`; and it refuses what
`api_rules` says. Nothing happens by itself: nobody schedules, collects garbage, authorizes or calls webhooks.
"""

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Self

from aiohttp import web

from hami_kubeletplugin.fake.api_kinds import GROUP, RESOURCES, Object, api_version, served, stored
from hami_kubeletplugin.fake.api_pages import Pages
from hami_kubeletplugin.fake.api_patch import patched
from hami_kubeletplugin.fake.api_requests import Asked, parse
from hami_kubeletplugin.fake.api_rules import admit, check_namespace
from hami_kubeletplugin.fake.api_store import Key, Refusal, Store


@dataclass(slots=True)
class _Fault:
    """What goes wrong for matching requests; None matches everything."""

    status: int
    verb: str | None
    resource: str | None
    times: int | None
    message: str
    headers: Mapping[str, str] | None

    def hits(self, verb: str, resource: str) -> bool:
        """Whether it applies now; counts down."""
        if self.verb not in {None, verb} or self.resource not in {None, resource} or self.times == 0:
            return False
        if self.times is not None:
            self.times -= 1
        return True


class ApiServer:
    """The server. Methods that are not `async` take effect at once.

    Args:
        version: What `/version` says.
        api_versions: Versions of resource.k8s.io that are served; others answer 404. Change `api_versions` to upgrade.
        gates_off: Feature gates whose fields are dropped silently: `DRAConsumableCapacity`, `DRADeviceTaints`.
        token: If set, every request needs this bearer token.
        tls: If set, https.
    """

    def __init__(
        self,
        *,
        version: tuple[int, int] = (1, 37),
        api_versions: tuple[str, ...] = ("v1",),
        gates_off: frozenset[str] = frozenset(),
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.version, self.api_versions, self.gates_off, self.token = version, api_versions, gates_off, token
        self.requests: Counter[tuple[str, str]] = Counter()
        """How often each (verb, resource) was asked, faults included; `/version` is ("get", "version")."""
        self.last_headers: dict[str, str] = {}
        self.latency = 0.0
        self._faults: list[_Fault] = []
        self.store = Store()
        self._pages = Pages(self.store)
        self._tls = tls
        self._port = 0
        self._runner: web.AppRunner | None = None
        self._watches: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()

    @property
    def url(self) -> str:
        """Where it listens; the same after `down` and `up`."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    @property
    def writes(self) -> int:
        """Requests so far that could have changed something."""
        return sum(n for (verb, _), n in self.requests.items() if verb not in {"get", "list", "watch"})

    async def up(self) -> None:
        """Listen (again)."""
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._tls, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def down(self) -> None:
        """Refuse connections and cut those that are open, as when the process dies."""
        if self._runner is not None:
            self.drop_watches()
            await self._runner.cleanup()
            self._runner = None

    def put(self, resource: str, obj: Object) -> Object:
        """Create or replace an object, as somebody else would. Returns it with its uid and resourceVersion.

        An object whose `metadata.uid` differs from the stored one is a new object of the same name.
        """
        key = _key_of(resource, obj)
        metadata = {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}
        old = [item for item in self.store.all(resource, key.namespace) if _key_of(resource, item) == key]
        if old and metadata.get("uid", old[0]["metadata"]["uid"]) == old[0]["metadata"]["uid"]:
            return self.store.update(key, obj | {"metadata": metadata})
        if old:
            self.store.delete(key)
        return self.store.create(key, obj | {"metadata": metadata})

    def remove(self, resource: str, name: str, namespace: str = "") -> None:
        """Delete an object, as somebody else would."""
        self.store.delete(Key(resource, namespace, name))

    def all(self, resource: str) -> list[Object]:
        """The objects of a resource, by namespace and name, in their v1 form."""
        return self.store.all(resource)

    def fail(
        self,
        status: int,
        *,
        verb: str | None = None,
        resource: str | None = None,
        times: int | None = None,
        message: str = "injected fault",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer with `status` until `mend`, or `times` times; `verb` and `resource` narrow it down."""
        self._faults.append(_Fault(status, verb, resource, times, message, headers))

    def mend(self) -> None:
        """No more faults."""
        self._faults.clear()

    def drop_watches(self) -> None:
        """Cut every open watch."""
        for task in self._watches:
            task.cancel()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.last_headers = dict(request.headers)
        try:
            return await self._route(request)
        except Refusal as refusal:
            return web.json_response(refusal.status, status=refusal.code)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        asked = parse(request.method, request.rel_url.raw_path, request.query, self.api_versions)
        verb, resource = (asked.verb, asked.resource) if asked else ("get", request.path.strip("/"))
        self.requests[verb, resource] += 1
        if self.latency:
            await asyncio.sleep(self.latency)
        for fault in self._faults:
            if fault.hits(verb, resource):
                reason = HTTPStatus(fault.status).phrase.replace(" ", "")
                body = Refusal(fault.status, reason, fault.message).status
                return web.json_response(body, status=fault.status, headers=fault.headers)
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            raise Refusal(HTTPStatus.UNAUTHORIZED, "Unauthorized", "Unauthorized")
        if request.path == "/version":
            major, minor = self.version
            return web.json_response({"major": str(major), "minor": str(minor), "gitVersion": f"v{major}.{minor}.0"})
        if request.path == f"/apis/{GROUP}":
            versions = [{"groupVersion": f"{GROUP}/{version}", "version": version} for version in self.api_versions]
            return web.json_response({"kind": "APIGroup", "name": GROUP, "versions": versions})
        if asked is None:
            # The real one answers unknown group versions in plain text.
            return web.Response(status=HTTPStatus.NOT_FOUND, text="404 page not found\n")
        if verb == "watch":
            return await self._watch(request, asked)
        body = await request.json() if request.can_read_body else {}
        result = self._do(request, asked, body)
        return web.json_response(result, status=HTTPStatus.CREATED if verb == "create" else HTTPStatus.OK)

    def _do(self, request: web.Request, asked: Asked, body: Object) -> Object:
        key, store = asked.key, self.store
        match asked.verb:
            case "get":
                result = store.get(key)
            case "list" | "deletecollection":
                return self._list(request, asked)
            case "create":
                check_namespace(store, key)
                obj = admit(asked.resource, stored(asked.resource, asked.version, body), None, self.gates_off)
                if request.query.get("dryRun"):
                    return served(asked.resource, asked.version, obj)
                result = store.create(key._replace(name=obj.get("metadata", {}).get("name", "")), obj)
            case "update":
                result = self._update(key, stored(asked.resource, asked.version, body))
            case "patch":
                whole = patched(served(asked.resource, asked.version, store.get(key)), body, request.content_type)
                result = self._update(key, stored(asked.resource, asked.version, whole))
            case "delete":
                result = store.delete(key, body.get("preconditions"))
            case _:
                raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "MethodNotAllowed", f"{asked.verb} is not served")
        return served(asked.resource, asked.version, result)

    def _update(self, key: Key, obj: Object) -> Object:
        return self.store.update(key, admit(key.resource, obj, self.store.get(key), self.gates_off))

    def _list(self, request: web.Request, asked: Asked) -> Object:
        query = request.query
        items = self.store.all(asked.resource, asked.key.namespace, query.get("fieldSelector", ""))
        if asked.verb == "deletecollection":
            for item in items:
                self.store.delete(_key_of(asked.resource, item))
        items, metadata = self._pages.page(items, int(query.get("limit", "0")), query.get("continue", ""))
        return {
            "kind": f"{RESOURCES[asked.resource].kind}List",
            "apiVersion": api_version(asked.resource, asked.version),
            "metadata": metadata,
            "items": [served(asked.resource, asked.version, item) for item in items],
        }

    async def _watch(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        task = asyncio.ensure_future(self._stream(response, request.query, asked))
        self._watches.add(task)
        try:
            # A watch that is cut ends the connection in the middle of the chunked body, as when the server dies.
            async with asyncio.timeout(float(request.query.get("timeoutSeconds", "1800"))):
                await task
        except (TimeoutError, ConnectionResetError):
            pass
        finally:
            self._watches.discard(task)
        return response

    async def _stream(self, response: web.StreamResponse, query: Mapping[str, str], asked: Asked) -> None:
        async def send(kind: str, obj: Object) -> None:
            await response.write(json.dumps({"type": kind, "object": obj}).encode() + b"\n")

        since, selector = int(query.get("resourceVersion", "0")), query.get("fieldSelector", "")
        try:
            async with aclosing(self.store.watch(asked.resource, since, selector, asked.key.namespace)) as changes:
                async for change in changes:
                    if change.type != "BOOKMARK":
                        await send(change.type, served(asked.resource, asked.version, change.object))
                    elif query.get("allowWatchBookmarks") == "true":
                        kind = RESOURCES[asked.resource].kind
                        head = {"kind": kind, "apiVersion": api_version(asked.resource, asked.version)}
                        await send(change.type, head | change.object)
        except Refusal as refusal:
            await send("ERROR", refusal.status)


def _key_of(resource: str, obj: Object) -> Key:
    metadata = obj["metadata"]
    return Key(resource, metadata.get("namespace", "") if RESOURCES[resource].namespaced else "", metadata["name"])
