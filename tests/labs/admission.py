"""A validating admission webhook of the lab's Kubernetes: the API server calls it for each pod, over TLS."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.labs.kubernetes import KubernetesLab

NAME = "policy.example.org"
_PATH = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


class Webhook(BaseHTTPRequestHandler):
    """Refuse each pod of the namespace ``drones`` with ``message``, or accept all if that is empty."""

    message = ""

    def do_POST(self) -> None:
        """Answer an AdmissionReview (admission.k8s.io/v1)."""
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = review["request"]
        response = {
            "uid": asked["uid"],
            "allowed": not self.message or asked.get("namespace") != "drones",
        }
        if not response["allowed"]:
            response["status"] = {"code": 400, "message": self.message}
        body = json.dumps({**review, "request": None, "response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Say nothing."""


class AdmissionServer:
    """The webhook's server, which a test stops and starts again."""

    def __init__(self, lab: KubernetesLab) -> None:
        self._lab, self._port = lab, 0
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}/"

    def start(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Webhook)
        self._port = self._server.server_port
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trust.load_cert_chain(
            self._lab.directory / "server.crt", self._lab.directory / "server.key"
        )
        self._server.socket = trust.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="webhook", daemon=True
        ).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@contextmanager
def admission_webhook(lab: KubernetesLab, message: str) -> Iterator[AdmissionServer]:
    """Pods of drones are refused with this message, while inside. Set ``Webhook.message`` to change it."""
    server = AdmissionServer(lab)
    Webhook.message = message
    server.start()
    trusted = base64.b64encode((lab.directory / "server.crt").read_bytes()).decode()
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "resources": ["pods"],
        "operations": ["CREATE"],
    }
    hook = {
        "name": NAME,
        "clientConfig": {"url": server.url, "caBundle": trusted},
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
        "timeoutSeconds": 5,
    }
    lab.post(_PATH, {"metadata": {"name": NAME}, "webhooks": [hook]})
    try:
        yield server
    finally:
        lab.call("DELETE", f"{_PATH}/{NAME}")
        server.stop()
