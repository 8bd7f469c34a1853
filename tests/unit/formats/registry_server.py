"""A small HTTP server that answers as Confluent's interface is documented, and fails as told.

tests/integration/test_schema_registry.py has a real registry; this one refuses and fails.
"""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class RegistryServer:
    """`answers` are bodies by path. `broken` answers with 503 come before the next good one."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.authorizations: list[str | None] = []
        self.broken = 0
        self.status = 200

    def add(self, number: int, schema: str, kind: str | None = None, **more: Any) -> None:
        body = {"schema": schema, **({} if kind is None else {"schemaType": kind}), **more}
        self.answers[f"/schemas/ids/{number}"] = body

    def add_latest(self, subject: str, number: int) -> None:
        body = {**self.answers[f"/schemas/ids/{number}"], "subject": subject, "id": number}
        self.answers[f"/subjects/{subject}/versions/latest"] = {**body, "version": 1}


@contextlib.contextmanager
def registry_server() -> Iterator[RegistryServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.asked.append(self.path)
            registry.authorizations.append(self.headers["Authorization"])
            status, body = registry.status, registry.answers.get(self.path)
            if registry.broken:
                registry.broken -= 1
                status, body = 503, None
            elif status == 200 and body is None:
                status, body = 404, {"error_code": 40403, "message": "Schema not found"}
            raw = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry = RegistryServer(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
