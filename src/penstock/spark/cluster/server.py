"""Outlets of the driver's process, for the source processes of its queries.

Spark runs a query's source in a process of its own, on the driver's machine. It asks over a socket
in a folder that nobody else may look into, one connection for each query. When the connection ends,
however the process did, the feed is closed in order, and its job with it. Questions are JSON, which
makes no objects here; answers are pickled, and unpickled by a process that the driver has started.
"""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
import socket
import threading
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

from penstock.epoch.fields import boolean, fields_of, number, seconds, string
from penstock.errors import ConfigurationError, LocalProtocolError, PenstockError
from penstock.threads import supervised

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from penstock.shuffle.outlet import Outlet, Share

CONNECTIONS_WAITING_MAX: Final = 64
CLOSE_SECONDS_MAX: Final = 60.0
"""For a feed that is closed while it starts. It ends with this process in any case."""
FEED_SECONDS_MAX: Final = 60.0
"""Until the feed of a query that was stopped is closed, for the query's next run."""
LOOK_SECONDS: Final = 0.2

REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of what a source process says. Options hold a query's whole configuration, at most."""

CALLS: Final[Mapping[str, tuple[Callable[[object], float], ...]]] = {
    "wait_epoch": (number, seconds),
    "newest": (),
    "numbers": (number,),
    "epoch": (number,),
    "shares": (),
    "consumed": (number,),
    "set_target": (),
    "has_reached": (number,),
    "figures": (),
}
"""What may be asked, and of which kinds the arguments are. An epoch goes by its number."""

_LOG: Final = logging.getLogger("penstock.spark")


@dataclass(frozen=True, slots=True)
class Opening:
    """The first thing a source process says: which feed is meant."""

    feed: str
    is_new: bool
    options: dict[str, str] = field(repr=False)

    def encode(self) -> bytes:
        said = {"feed": self.feed, "is_new": self.is_new, "options": self.options}
        return json.dumps(said).encode()

    @classmethod
    def decode(cls, data: bytes) -> Opening:
        said = fields_of(data)
        options = {string(name): string(value) for name, value in said["options"].items()}
        return cls(string(said["feed"]), boolean(said["is_new"]), options)


@dataclass(frozen=True, slots=True)
class Call:
    """What it asks of the outlet then. All arguments are numbers."""

    method: str
    arguments: tuple[float, ...]

    def encode(self) -> bytes:
        return json.dumps({"method": self.method, "arguments": self.arguments}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Call:
        said = fields_of(data)
        method = string(said["method"])
        if method not in CALLS:
            raise ValueError(f"an outlet is not asked {method!r}")
        checks = CALLS[method]
        return cls(
            method,
            tuple(check(each) for check, each in zip(checks, said["arguments"], strict=True)),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    value: Any


@dataclass(frozen=True, slots=True)
class Refused:
    error: BaseException


class ClusterClosedError(PenstockError):
    """The program has left the context of `penstock.cluster` while a query of it runs. Stop the
    query first."""

    def __str__(self) -> str:
        return (
            f"the cluster that runs feed {self.args[0]} was closed: stop queries before the "
            "program leaves `with penstock.cluster(...)`"
        )


class OutletServer:
    """From its making to `close`."""

    def __init__(self, path: Path, open_outlet: Callable[[Opening], Outlet]) -> None:
        self._open_outlet = open_outlet
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(CONNECTIONS_WAITING_MAX)
        self._listener.settimeout(LOOK_SECONDS)
        self.closing: Final = threading.Event()
        self._changed = threading.Condition()
        self._feeds: set[str] = set()
        """Those that are open, or not closed yet."""
        self._outlets: dict[str, tuple[Outlet, threading.Lock]] = {}
        """Those that are open. An outlet is for one thread at a time."""
        self._threads: list[threading.Thread] = []
        self._accepting = supervised("outlets", self._accept, until=self.closing.is_set)
        self._accepting.start()

    def shares(self, feed: str) -> list[Share]:
        """For tasks that do not find a queue: where it is now. By any thread."""
        found = self._outlets.get(feed)
        if found is None:
            raise ClusterClosedError(feed)
        outlet, lock = found
        with lock:
            if self._outlets.get(feed) is not found:  # it was closed meanwhile
                raise ClusterClosedError(feed)
            return outlet.shares()

    def close(self) -> None:
        """Closes all feeds. A query that still runs fails, and says why."""
        self.closing.set()
        self._accepting.join()
        self._listener.close()
        for thread in self._threads:
            thread.join(CLOSE_SECONDS_MAX)
            if thread.is_alive():
                _LOG.warning("a feed is not closed after %g s", CLOSE_SECONDS_MAX)

    def _accept(self) -> None:
        while not self.closing.is_set():
            try:
                connected, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError as error:  # out of descriptors, say
                _LOG.warning("no query can connect: %s", error)
                self.closing.wait(LOOK_SECONDS)
                continue
            connected.setblocking(True)
            thread = supervised("outlet", self._serve, Connection(connected.detach()))
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]
            thread.start()

    def _serve(self, connection: Connection) -> None:
        with connection, contextlib.suppress(EOFError, OSError):  # the query is over
            said = self._next(connection)
            if said is None:
                return
            try:
                opening = Opening.decode(said)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                _LOG.warning("a source process says which feed it means in a wrong way: %r", error)
                return
            if not self._reserve(opening.feed):
                busy = ConfigurationError(
                    f"feed {opening.feed} is read by another query: a checkpoint is for one"
                )
                connection.send(Refused(busy))
                return
            try:
                self._serve_feed(connection, opening)
            finally:
                with self._changed:
                    self._feeds.discard(opening.feed)
                    self._changed.notify_all()

    def _serve_feed(self, connection: Connection, opening: Opening) -> None:
        try:
            outlet = self._open_outlet(opening)
        except Exception as error:  # noqa: BLE001 - whatever it is, the query is told
            connection.send(Refused(shippable(error)))
            return
        lock = threading.Lock()
        self._outlets[opening.feed] = outlet, lock
        try:
            connection.send(Answer(None))
            while (said := self._next(connection)) is not None:
                with lock:
                    answer = _answer(outlet, said)
                connection.send(answer)
            connection.send(Refused(ClusterClosedError(opening.feed)))
        finally:
            del self._outlets[opening.feed]
            with lock:
                outlet.close()

    def _next(self, connection: Connection) -> bytes | None:
        """What the source process says next; None if this is closed."""
        while not self.closing.is_set():
            if connection.poll(LOOK_SECONDS):
                return connection.recv_bytes(REQUEST_BYTES_MAX)
        return None

    def _reserve(self, feed: str) -> bool:
        with self._changed:
            is_free = self._changed.wait_for(lambda: feed not in self._feeds, FEED_SECONDS_MAX)
            if is_free:
                self._feeds.add(feed)
            return is_free


def _answer(outlet: Outlet, said: bytes) -> Answer | Refused:
    try:
        try:
            call = Call.decode(said)
        except (ValueError, KeyError, TypeError) as error:
            raise LocalProtocolError(f"this is not what an outlet is asked: {error}") from error
        arguments: tuple[Any, ...] = call.arguments
        if call.method == "has_reached":
            arguments = (outlet.epoch(*arguments),)
        return Answer(getattr(outlet, call.method)(*arguments))
    except Exception as error:  # noqa: BLE001 - whatever it is, the query is told
        return Refused(shippable(error))


def shippable(error: BaseException) -> BaseException:
    """The error itself, if the other process can make it again; else what it says."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own, of a moment ago
    except Exception:  # noqa: BLE001 - whatever a foreign error does when it is pickled
        return PenstockError(f"{type(error).__name__}: {error}")
    return error
