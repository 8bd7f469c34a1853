"""One request: who may, what for, and what comes back."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import parse_qsl, urlsplit

from penstock.errors import PenstockError
from penstock.web import metrics
from penstock.web.aborting import Aborting
from penstock.web.events import chosen, event_text, summary

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.web.access import Access
    from penstock.web.feeds import Feeds, Look

LOOK_SECONDS: Final = 0.2
"""A stream looks so often whether there is something new; feeds write twice a second."""
SIGN_OF_LIFE_SECONDS: Final = 5.0
"""So often a stream says something, so that a page notices a dead one, and we a page that left."""
SOCKET_SECONDS_MAX: Final = 15.0
"""Who does not read, or sends half a request, is let go."""
BODY_BYTES_MAX: Final = 262_144
"""An abort names the journals of a transaction: up to 1,024, with names of the usual length."""
STREAMS_MAX: Final = 50
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "txt": "text/plain; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NOT_LET_IN: Final = (
    "The token is missing or wrong. Open the address that `penstock` printed when it started: it "
    "ends in ?token=...\n"
)


@dataclass(slots=True)
class Served:
    """What all requests share."""

    feeds: Feeds
    access: Access
    aborting: Aborting = field(default_factory=Aborting)
    metrics_open: bool = False
    stopping: threading.Event = field(default_factory=threading.Event)
    streams: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(STREAMS_MAX)
    )


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "penstock"
    sys_version = ""
    timeout = SOCKET_SECONDS_MAX

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        if not self._is_let_in(parts.path, query):
            return
        match parts.path:
            case "/":
                self._page(query)
            case "/state":
                self._with_look(query, self._state)
            case "/events":
                self._with_look(query, self._events)
            case "/feeds":
                feeds = self._served.feeds
                told = [summary(look) for look in feeds.look_at_all()]
                self._json({"feeds": told, "left_out": feeds.left_out})
            case "/metrics":
                text = metrics.expose(self._served.feeds.look_at_all())
                self._answer(HTTPStatus.OK, text.encode(), metrics.CONTENT_TYPE)
            case path if path.startswith("/assets/"):
                self._asset(path.removeprefix("/assets/"))
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, f"There is no {parts.path} here.\n")

    def do_POST(self) -> None:
        """The one thing that a page can change."""
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        if not self._is_let_in(parts.path, query):
            return
        if not self._served.access.may_change(self._headers):
            self._refuse(
                HTTPStatus.FORBIDDEN, "Only the page itself, or a program with a bearer, may ask.\n"
            )
            return
        if parts.path != "/abort":
            self._refuse(HTTPStatus.NOT_FOUND, f"There is no {parts.path} here.\n")
            return
        size = self.headers.get("Content-Length", "")
        if not size.isdecimal() or int(size) > BODY_BYTES_MAX:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "That is too much.\n")
            return
        asked = self.rfile.read(int(size))
        look = self._served.feeds.look(query.get("feed", ""))
        if look is None:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such feed here.\n")
            return
        try:
            done = self._served.aborting.abort(look, asked, str(self.client_address[0]))
        except PenstockError as error:
            self._refuse(HTTPStatus.CONFLICT, f"{error}.\n")
        except OSError as error:
            self._refuse(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                f"The store cannot be used: {error}. What was begun is on record, and "
                "`penstock recover` does the rest.\n",
            )
        else:
            self._json(done)

    @property
    def _served(self) -> Served:
        return cast("Any", self.server).served  # type: ignore[no-any-return]

    def _is_let_in(self, path: str, query: dict[str, str]) -> bool:
        access = self._served.access
        if not access.is_our_host(self._headers):
            self._refuse(
                HTTPStatus.MISDIRECTED_REQUEST,
                "This server is not reached by that name. Use the address that was printed.\n",
            )
            return False
        if self._served.metrics_open and path == "/metrics":
            return True
        if not access.shows_token(self._headers, query):
            self._refuse(HTTPStatus.FORBIDDEN, _NOT_LET_IN)
            return False
        return True

    @property
    def _headers(self) -> dict[str, str]:
        return {name.title(): value for name, value in self.headers.items()}

    def _page(self, query: dict[str, str]) -> None:
        if "token" in query:
            # Out of the address bar, and so out of what is copied and kept from there.
            self.send_response(HTTPStatus.SEE_OTHER)
            self.send_header("Set-Cookie", self._served.access.set_cookie())
            self.send_header("Location", "/")
            self._end_headers(b"")
            return
        self._asset("index.html")

    def _asset(self, name: str) -> None:
        data = _assets().get(name)
        if data is None:
            self._refuse(HTTPStatus.NOT_FOUND, f"There is no {name} here.\n")
            return
        kind = _TYPES[name.rpartition(".")[2]]
        self._answer(HTTPStatus.OK, data, kind)

    def _with_look(self, query: dict[str, str], answer: Callable[[str | None], None]) -> None:
        name = query.get("feed")
        if name is not None and self._served.feeds.look(name) is None:
            self._refuse(HTTPStatus.NOT_FOUND, f"There is no feed {name!r} here.\n")
            return
        answer(name)

    def _state(self, name: str | None) -> None:
        looks = self._served.feeds.look_at_all()
        text = self._event(looks, chosen(looks, name))
        self._answer(HTTPStatus.OK, text, "application/json; charset=utf-8")

    def _events(self, name: str | None) -> None:
        """Server-sent events, until the page leaves or the server ends."""
        served = self._served
        if not served.streams.acquire(blocking=False):
            self._refuse(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{STREAMS_MAX} pages are open already; close some.\n",
            )
            return
        try:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.close_connection = True
            self._end_headers(None)
            self._stream(name)
        finally:
            served.streams.release()

    def _stream(self, name: str | None) -> None:
        served = self._served
        seen: object = None
        shown: Look | None = None
        said_at = float("-inf")
        while not served.stopping.is_set():
            looks = served.feeds.look_at_all()
            stamps = [look.stamp for look in looks]
            if stamps != seen or time.monotonic() - said_at >= SIGN_OF_LIFE_SECONDS:
                seen, said_at = stamps, time.monotonic()
                shown = self._shown(looks, name, shown)
                self.wfile.write(b"data: " + self._event(looks, shown) + b"\n\n")
                self.wfile.flush()
            served.stopping.wait(LOOK_SECONDS)

    def _event(self, looks: list[Look], shown: Look | None) -> bytes:
        served = self._served
        aborts = [] if shown is None else served.aborting.done(shown)
        feeds = served.feeds
        return event_text(looks, shown, places=feeds.places, aborts=aborts, left_out=feeds.left_out)

    @staticmethod
    def _shown(looks: list[Look], name: str | None, before: Look | None) -> Look | None:
        """A page stays with its feed, unless it ended and nobody had chosen it."""
        if name is None and before is not None:
            same = chosen(looks, before.name)
            if same is not None and same.is_alive:
                return same
        return chosen(looks, name)

    def _json(self, value: object, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._answer(status, json.dumps(value).encode(), "application/json; charset=utf-8")

    def _refuse(self, status: HTTPStatus, words: str) -> None:
        self.close_connection = True  # what else was sent with it was not read
        self._answer(status, words.encode(), "text/plain; charset=utf-8")

    def _answer(self, status: HTTPStatus, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self._end_headers(data)

    def _end_headers(self, data: bytes | None) -> None:
        if data is not None:
            self.send_header("Content-Length", str(len(data)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if data:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Quiet: an access log of one's own page helps nobody."""


@cache
def _assets() -> dict[str, bytes]:
    """All files of the page, by their paths. They are few and small."""
    found: dict[str, bytes] = {}

    def walk(folder: Any, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                walk(entry, f"{prefix}{entry.name}/")
            else:
                found[prefix + entry.name] = entry.read_bytes()

    walk(resources.files("penstock.web") / "assets", "")
    return found
