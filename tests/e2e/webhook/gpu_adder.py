"""Somebody else's mutating webhook, which puts a GPU into the first container of a pod, as operators and policy engines do."""

import base64
import http.server
import json
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from hami_kubeletplugin.webhook.certificate.key_pair import make, server_context
from tests.e2e.cluster import NAMESPACE
from tests.e2e.webhook.process import ADDRESS

Json = dict[str, Any]

_PATCH = [{"op": "add", "path": "/spec/containers/0/resources", "value": {"limits": {"nvidia.com/gpu": "1"}}}]


class GpuAdder:
    """The server, for as long as the block lasts; it stops by itself with the tests.

    Attributes:
        reviews: How many it has answered.
    """

    def __init__(self) -> None:
        self.reviews = 0
        self._pair = make({ADDRESS}, datetime.now(UTC))
        self._server = http.server.ThreadingHTTPServer((ADDRESS, 0), self._handler())
        self._server.socket = server_context(self._pair).wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        """Serve."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def configuration(self, name: str, selector: Json) -> Json:
        """The MutatingWebhookConfiguration that has it called for new pods of the tests.

        Args:
            name: Of the object.
            selector: Of the pods.
        """
        bundle = base64.b64encode(self._pair.chain.encode()).decode()
        url = f"https://{ADDRESS}:{self._server.server_address[1]}"
        webhook = {
            "name": "gpu-adder.example.com",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": url, "caBundle": bundle},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "objectSelector": selector,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
            "sideEffects": "None",
            "timeoutSeconds": 10,
        }
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [webhook],
        }

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        adder = self

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 10

            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                adder.reviews += 1
                patch = base64.b64encode(json.dumps(_PATCH).encode()).decode()
                response = {"uid": review["request"]["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
                body = json.dumps({**review, "request": None, "response": response}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        return Handler
