"""How a task comes to be a member.

A task is sent a `Ticket`, by Spark, in its closure: where the driver listens, the certificate that
the driver's must be issued by, and a join token. It connects, checks the driver's certificate, and
shows the token. From then on both ends trust each other, and only over this connection the member's
own certificate and the session's token come. It stays open: orders and steps go through it.

    task                          driver
    ──── TLS, token, Joining ───>
    <─────────────────── Given ──   once all tasks of the job are there
    <─── orders · steps ──────────>
    ──── Over ──────────────────>    the member was closed in order
    <──────── Given, or None ────    the next session's, or the end of the task

The token is of one session, and good until all its members have joined.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import math
import pickle
import queue
import secrets
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.epoch.fields import fields_of, number, string
from penstock.errors import PeerUnavailableError, RemoteProtocolError
from penstock.shuffle.control import SESSION
from penstock.shuffle.member_messages import MESSAGE_BYTES_MAX, decode_message
from penstock.spark.cluster.places import Held
from penstock.threads import supervised
from penstock.transport.carriers.pipes import TlsPipe
from penstock.transport.certificates import member_name
from penstock.transport.security import server_context

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.shuffle.member_messages import MemberMessage
    from penstock.shuffle.process_member import Given, Order
    from penstock.transport.security import ClusterSecurity

TOKEN_BYTES: Final = 32
PROOF_SECONDS_MAX: Final = 20.0
"""For the handshake, the token and the first message together. Who takes longer is none of ours."""
UNPROVEN_MAX: Final = 64
"""Connections that have not shown the token yet. Each has a thread."""
LOOK_SECONDS: Final = 0.5
"""Between two looks for those whose time is over."""
PAUSE_SECONDS: Final = 0.1
"""When the system has nothing to spare: whoever waits would be refused again at once."""
GIVEN_BYTES_MAX: Final = 64 * 1024 * 1024
"""A member's `Given` has the feed and the assignment: some kilobytes."""
KEPT_SECONDS: Final = 30
"""A machine that has not answered for so long is gone."""
_FOR_EVER_SECONDS: Final = 1e6
_LENGTH: Final = struct.Struct("<I")

_LOG: Final = logging.getLogger("penstock.spark")


@dataclass(frozen=True, slots=True)
class Ticket:
    """With a task's closure: how it finds the driver, and proves to be its task."""

    host: str
    port: int
    authority: bytes = field(repr=False)
    token: bytes = field(repr=False)
    feed: str
    folder: str
    """For the queues. Empty: Spark's own local directories."""
    local_directories: str
    """What Spark is configured to use, where the executor does not say."""
    is_local: bool
    """All in the driver's process, as with `local[4]`."""


@dataclass(frozen=True, slots=True)
class Joining:
    """What a task says of itself."""

    host: str
    machine: str
    process: int
    folder: str
    """Where it would put its queue's folder."""
    held: dict[int, Held]
    """Queues of members of the same feed that are on its machine already."""

    def encode(self) -> bytes:
        held = {member: [one.folder, one.generation] for member, one in self.held.items()}
        said = [self.host, self.machine, self.process, self.folder, held]
        names = ("host", "machine", "process", "folder", "held")
        return json.dumps(dict(zip(names, said, strict=True))).encode()

    @classmethod
    def decode(cls, data: bytes) -> Joining:
        """As plain data: the driver makes no object of a task's that is not this one."""
        try:
            said = fields_of(data)
            held = {
                int(member): Held(string(folder), number(generation))
                for member, (folder, generation) in said["held"].items()
            }
            host, machine, folder = (string(said[name]) for name in ("host", "machine", "folder"))
            return cls(host, machine, number(said["process"]), folder, held)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RemoteProtocolError(
                f"a task says of itself what is not valid: {error}"
            ) from error


class Wire:
    """A connection that carries messages. One thread reads while others write."""

    def __init__(self, connected: ssl.SSLSocket) -> None:
        _watch(connected)
        self._pipe = TlsPipe(connected)
        self._pipe.limit(_FOR_EVER_SECONDS)
        self._lock = threading.Lock()

    def send_bytes(self, data: bytes, /) -> None:
        with self._lock:
            self._pipe.send([_LENGTH.pack(len(data)), data])

    def recv_bytes(self, bytes_max: int) -> bytes:
        (size,) = _LENGTH.unpack(self._receive(_LENGTH.size))
        if size > bytes_max:
            raise OSError(f"a message of {size} bytes is none of ours")
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._pipe.receive_into(view)
            if not count:
                raise EOFError("the other end is gone")
            view = view[count:]
        return bytes(data)

    def cut(self) -> None:
        """Ends it for both ends, also for a thread that waits for a message."""
        self._pipe.cut()

    def close(self) -> None:
        self._pipe.close()


class TaskWire(Wire):
    """The task's end. It trusts the driver, whose closure it runs, and unpickles what it gives."""

    def recv(self) -> Any:
        return pickle.loads(self.recv_bytes(GIVEN_BYTES_MAX))  # noqa: S301 - the driver has proven itself


class DriverWire(Wire):
    """The driver's end. A task may be taken over: what it says is read as plain data."""

    def send(self, obj: Given | Order | None, /) -> None:
        self.send_bytes(pickle.dumps(obj))

    def receive(self) -> MemberMessage:
        return decode_message(self.recv_bytes(MESSAGE_BYTES_MAX))


# In a task


def join(ticket: Ticket, joining: Joining) -> TaskWire:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=ticket.authority.decode())
    context.hostname_checks_common_name = False
    try:
        plain = socket.create_connection((ticket.host, ticket.port), PROOF_SECONDS_MAX)
        connected = context.wrap_socket(plain, server_hostname=member_name(SESSION))
        connected.sendall(ticket.token)
    except OSError as error:
        raise PeerUnavailableError(
            f"the driver cannot be reached at {ticket.host}:{ticket.port} ({error}): the session "
            "that this task belongs to is over, or executors cannot connect to the driver's machine"
        ) from error
    wire = TaskWire(connected)
    wire.send_bytes(joining.encode())
    return wire


# On the driver


class _Newcomer:
    """Somebody who has connected, and is no task yet."""

    def __init__(self, connected: socket.socket, host: str) -> None:
        self.connected = connected
        self.host = host
        self.deadline = time.monotonic() + PROOF_SECONDS_MAX
        """For all of it: the handshake, the token and the first message."""
        self.is_proven = False
        """It has shown the token."""

    def cut(self) -> None:
        """Ends whatever its thread waits for. Again at each look: while TLS takes the connection
        over, there is a moment in which this has no effect."""
        self.deadline = -math.inf
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.connected, socket.SHUT_RDWR)


class Door:
    """Lets tasks of one session in, from its making to `close`.

    Anybody can connect, so nothing that a stranger does may keep tasks out: each connection has one
    deadline for all that it has to show, and with too many of them the oldest makes room for the
    newest. A task needs some milliseconds to prove itself, and has a place of its own from then on.
    """

    def __init__(self, host: str, security: ClusterSecurity) -> None:
        credentials = security.member_security(SESSION).credentials
        if credentials is None or security.authority is None:
            raise RemoteProtocolError("tasks join over TLS, with certificates made for them")
        self._context = server_context(credentials)
        # A task has no certificate yet. What it proves itself with is the token.
        self._context.verify_mode = ssl.CERT_NONE
        self.authority: Final = security.authority.certificate
        self.token: Final = secrets.token_bytes(TOKEN_BYTES)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=UNPROVEN_MAX)
        self._listener.settimeout(LOOK_SECONDS)
        self.port: Final[int] = self._listener.getsockname()[1]
        self._came: queue.SimpleQueue[tuple[DriverWire, Joining]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._newcomers: list[_Newcomer] = []
        """The oldest first."""
        self._closing = threading.Event()
        self._thread = supervised("door", self._accept, until=self._closing.is_set)
        self._thread.start()

    def wait(self, seconds: float) -> tuple[DriverWire, Joining] | None:
        """The next task that has proven to be one."""
        with contextlib.suppress(queue.Empty):
            return self._came.get(timeout=seconds)
        return None

    def close(self) -> None:
        """Nobody else comes in. Those who did keep their connections."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which ends the waiting in `accept`
        self._thread.join()
        self._listener.close()
        with self._lock:
            for newcomer in self._newcomers:
                newcomer.cut()
        while (came := self.wait(0)) is not None:
            came[0].cut()

    def _accept(self) -> None:
        while not self._closing.is_set():
            self._cut_overdue()
            try:
                connected, (host, *_) = self._listener.accept()
                self._let_in(_Newcomer(connected, host))
            except TimeoutError:
                continue
            except (OSError, RuntimeError) as error:  # no descriptor, or no thread, to spare
                if not self._closing.wait(PAUSE_SECONDS):
                    _LOG.warning("no task can join for now: %s", error)

    def _let_in(self, newcomer: _Newcomer) -> None:
        with self._lock:
            self._make_room()
            self._newcomers.append(newcomer)
        try:
            supervised("door", self._prove, newcomer).start()
        except RuntimeError:
            self._forget(newcomer)
            newcomer.connected.close()
            raise

    def _make_room(self) -> None:
        """Called under the lock. Who comes from where most come from makes room first."""
        unproven = [
            each for each in self._newcomers if not each.is_proven and each.deadline > -math.inf
        ]
        if len(unproven) >= UNPROVEN_MAX:
            crowds = Counter(each.host for each in unproven)
            largest = max(crowds.values())
            next(each for each in unproven if crowds[each.host] == largest).cut()

    def _cut_overdue(self) -> None:
        now = time.monotonic()
        with self._lock:
            for newcomer in self._newcomers:
                if newcomer.deadline <= now:
                    newcomer.cut()

    def _forget(self, newcomer: _Newcomer) -> None:
        with self._lock:
            self._newcomers.remove(newcomer)

    def _prove(self, newcomer: _Newcomer) -> None:
        try:
            found = self._first_message(newcomer)
        except Exception as error:  # noqa: BLE001 - whatever a stranger sends, others come in
            _LOG.debug("a connection from %s is none of a task: %s", newcomer.host, error)
            newcomer.connected.close()
            return
        finally:
            self._forget(newcomer)
        if newcomer.deadline == -math.inf or self._closing.is_set():
            found[0].cut()
            return
        self._came.put(found)

    def _first_message(self, newcomer: _Newcomer) -> tuple[DriverWire, Joining]:
        newcomer.connected = connected = self._context.wrap_socket(
            newcomer.connected, server_side=True, do_handshake_on_connect=False
        )
        connected.do_handshake()
        shown = _read_exactly(connected.recv, TOKEN_BYTES)
        if not hmac.compare_digest(shown, self.token):
            raise RemoteProtocolError("it shows another token")
        newcomer.is_proven = True
        wire = DriverWire(connected)
        return wire, Joining.decode(wire.recv_bytes(MESSAGE_BYTES_MAX))


def _read_exactly(receive: Callable[[int], bytes], size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = receive(size - len(data))
        if not piece:
            raise EOFError("the other end is gone")
        data += piece
    return data


def _watch(connected: socket.socket) -> None:
    """A machine that vanishes says no farewell: the system asks, and gives it up."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEPT_SECONDS // 3),
        ("TCP_KEEPINTVL", KEPT_SECONDS // 6),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", KEPT_SECONDS * 1000),
    ):
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
