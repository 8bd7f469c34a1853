"""A feed that seems to run, and a server for it."""

from __future__ import annotations

import http.client
import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from penstock.web.feeds import Feeds
from penstock.web.server import WebServer
from tests.unit.web.example_state import example_state, hold_lock, put

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Asker:
    """Speaks HTTP to the server, with its token as a bearer unless told otherwise."""

    def __init__(self, server: WebServer) -> None:
        self.server = server

    def __call__(
        self,
        path: str,
        method: str = "GET",
        body: bytes | None = None,
        token: str | None = "",
        **headers: str,
    ) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            given.setdefault("Authorization", f"Bearer {token or self.server.token}")
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        try:
            connection.request(method, path, body, given)
            response = connection.getresponse()
            return Answer(response.status, dict(response.headers), response.read().decode())
        finally:
            connection.close()


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Path]:
    """The folder of a feed that runs."""
    folder = tmp_path / "feeds" / "orders"
    lock = hold_lock(folder)
    put(folder, example_state(time.time()))
    yield folder
    os.close(lock)


@pytest.fixture
def server(feed: Path, tmp_path: Path) -> Iterator[WebServer]:
    with WebServer(Feeds([tmp_path]), port=0) as made:
        yield made


@pytest.fixture
def ask(server: WebServer) -> Asker:
    return Asker(server)
