"""Reviews as the API server sends them, over HTTPS connections as it keeps them. A client that costs little itself."""

import asyncio
import contextlib
import json
import re
import ssl
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Self

HOST: Final = "127.0.0.1"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_LIMIT: Final = 10.0
"""Seconds for one answer; the API server waits as long."""

Json = Mapping[str, Any]


class Connection:
    """One that is kept alive. Use `connected()`."""

    def __init__(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._host, self._reader, self._writer = f"{HOST}:{port}", reader, writer

    @classmethod
    async def open(cls, port: int, tls: ssl.SSLContext) -> Self:
        """Connect.

        Raises:
            OSError: Nobody listens, or its certificate is not the right one.
        """
        return cls(port, *await asyncio.open_connection(HOST, port, ssl=tls, server_hostname=HOST))

    def close(self) -> None:
        """Close it."""
        self._writer.close()

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body."""
        return await self._exchange(f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())

    async def post(self, path: str, review: bytes) -> bytes:
        """The answer to a review."""
        head = (
            f"POST {path}?timeout=10s HTTP/1.1\r\nHost: {self._host}\r\nUser-Agent: kube-apiserver-admission\r\n"
            f"Content-Length: {len(review)}\r\nAccept: application/json, */*\r\nContent-Type: application/json\r\n"
            "Accept-Encoding: gzip\r\n\r\n"
        )
        status, body = await self._exchange(head.encode() + review)
        if status != 200:
            raise RuntimeError(f"{path} said {status}: {body.decode()}")
        return body

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        async with asyncio.timeout(_LIMIT):
            self._writer.write(request)
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = await self._reader.readexactly(int(length[1])) if length else b""
        return int(head.split(b" ", 2)[1]), body


@contextlib.asynccontextmanager
async def connected(port: int, tls: ssl.SSLContext) -> AsyncIterator[Connection]:
    """One connection for the block."""
    connection = await Connection.open(port, tls)
    try:
        yield connection
    finally:
        connection.close()


def review(obj: Json, resource: str) -> bytes:
    """The review of an object that is created.

    Args:
        obj: With its defaults, as the API server sends it.
        resource: Plural of its kind.
    """
    group, _, version = obj["apiVersion"].rpartition("/")
    kind = {"group": group, "version": version, "kind": obj["kind"]}
    of = {"group": group, "version": version, "resource": resource}
    request = {
        "uid": str(uuid.uuid4()),
        "kind": kind,
        "resource": of,
        "requestKind": kind,
        "requestResource": of,
        "name": obj["metadata"]["name"],
        "namespace": obj["metadata"]["namespace"],
        "operation": "CREATE",
        "userInfo": {"username": "admin", "uid": "admin", "groups": ["system:masters", "system:authenticated"]},
        "object": obj,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    whole = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    return json.dumps(whole, separators=(",", ":")).encode()


def deletion() -> bytes:
    """The least that can be asked: a pod is deleted, and nobody looks at it."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gone", "namespace": "default"}}
    return review(pod, "pods").replace(b'"operation":"CREATE"', b'"operation":"DELETE"')


def check(answer: bytes, *, patched: bool) -> None:
    """See that it allows, and changes something or nothing: times of other answers would mean nothing.

    Raises:
        RuntimeError: It does not.
    """
    response = json.loads(answer)["response"]
    if not response["allowed"] or ("patch" in response) != patched:
        raise RuntimeError(f"the webhook's answer: {response}")
