"""Members that speak over one carrier, for one test: they share addresses, and all end with it."""

from __future__ import annotations

import functools
import importlib
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from penstock.directory.keyvalue import MemoryKeyValue
from penstock.transport import Receiver, Sender, Timing
from penstock.transport.carriers import carrier_of
from penstock.transport.discovery import ADDRESS_KEY, Address, publish
from penstock.transport.security import ClusterSecurity, InsecureTransportWarning, Security, Token
from tests.conformance.waiting import Background, eventually, open_sockets, transport_threads

if TYPE_CHECKING:
    from collections.abc import Callable

SENDING, RECEIVING, OTHER, THIRD = 1, 2, 3, 4
"""Members, by what they mostly do in the tests."""
PATIENT = Timing(connect_seconds_max=30, heartbeat_seconds=10, silence_seconds_max=60)
"""For tests that are not about time: a machine that is busy must not end a connection."""
HASTY = Timing(connect_seconds_max=2, heartbeat_seconds=0.1, silence_seconds_max=0.5)
"""For tests of silence, which end by it."""
SMALL_WINDOW_BYTES = 64 * 1024


@dataclass(frozen=True)
class Kind:
    """A carrier, with or without TLS."""

    name: str
    carrier: str
    tls: bool

    def __str__(self) -> str:
        return self.name


def _has_grpc() -> bool:
    with suppress(ImportError):
        importlib.import_module("penstock.transport.carriers.grpc")
        return True
    return False


KINDS = [Kind("local", "local", False), Kind("tcp", "tcp", False), Kind("tcp-tls", "tcp", True)]
if _has_grpc():
    KINDS += [Kind("grpc", "grpc", False), Kind("grpc-tls", "grpc", True)]


def over(kinds: list[Kind]) -> pytest.MarkDecorator:
    """Runs a test over some of the kinds only. Where it stands, it says why not over the others."""
    return pytest.mark.parametrize("fabric", kinds, ids=str, indirect=True)


over_bytes = over([kind for kind in KINDS if kind.carrier != "local"])
"""For what has no meaning within a process, which moves no bytes."""
over_tcp = over([kind for kind in KINDS if kind.carrier == "tcp"])
over_grpc = over([kind for kind in KINDS if kind.carrier == "grpc"])
over_tls = over([kind for kind in KINDS if kind.tls])


@functools.cache
def cluster_of(kind: Kind) -> ClusterSecurity:
    return ClusterSecurity.create("conformance") if kind.tls else ClusterSecurity.insecure()


@functools.cache
def stranger_of(kind: Kind) -> ClusterSecurity:
    """Another cluster, of the same name and token: its certificates are of another authority."""
    token = cluster_of(kind).token
    if kind.tls:
        return ClusterSecurity.create("conformance", token=token)
    return ClusterSecurity.insecure(token=Token.generate())


def security_of(cluster: ClusterSecurity, member: int) -> Security:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureTransportWarning)
        return cluster.member_security(member)


@functools.cache
def _usual_security(kind: Kind, member: int) -> Security:
    return security_of(cluster_of(kind), member)


class Fabric:
    """Makes the members of one test, and closes them at its end."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.keyvalue = MemoryKeyValue(0)
        self._opened: list[Sender | Receiver] = []
        self._endings: list[Callable[[], object]] = []
        self._sockets_before = open_sockets()
        self._threads_before = transport_threads()

    def security(self, member: int) -> Security:
        return _usual_security(self.kind, member)

    def sender(
        self,
        member: int = SENDING,
        *,
        lane: int = 0,
        security: Security | None = None,
        timing: Timing = PATIENT,
        on_room: Callable[[int], None] = lambda _: None,
    ) -> Sender:
        sender = Sender(
            security or self.security(member),
            self.keyvalue.view(member),
            lane=lane,
            timing=timing,
            on_room=on_room,
        )
        self._opened.append(sender)
        return sender

    def receiver(
        self,
        member: int = RECEIVING,
        *,
        security: Security | None = None,
        timing: Timing = PATIENT,
        **options: Any,
    ) -> Receiver:
        receiver = Receiver(
            security or self.security(member),
            self.keyvalue.view(member),
            carrier=self.kind.carrier,
            timing=timing,
            **options,
        )
        self._opened.append(receiver)
        return receiver

    def small_receiver(self, member: int = RECEIVING, **options: Any) -> Receiver:
        """One with a window that is soon full."""
        streams_max = options.pop("streams_max", 4)
        inbound_bytes_max = SMALL_WINDOW_BYTES * streams_max
        return self.receiver(
            member, streams_max=streams_max, inbound_bytes_max=inbound_bytes_max, **options
        )

    def let_go(self, opened: Sender | Receiver) -> None:
        """The test's own reference is now the only one."""
        self._opened.remove(opened)

    def at_end(self, ending: Callable[[], object]) -> None:
        """Ends something else that the test opened."""
        self._endings.append(ending)

    def address(self, member: int = RECEIVING) -> Address:
        text = self.keyvalue.read(member, ADDRESS_KEY)
        assert text is not None
        return Address.parse(text)

    def publish(self, member: int, address: Address) -> None:
        publish(self.keyvalue.view(member), address)

    def count_dials(self, monkeypatch: pytest.MonkeyPatch) -> list[Address]:
        """Where connections are opened to from now on."""
        carrier: Any = carrier_of(self.kind.carrier)
        dial = carrier.dial
        dialled: list[Address] = []

        def counted(address: Address, *arguments: Any) -> Any:
            dialled.append(address)
            return dial(address, *arguments)

        monkeypatch.setattr(carrier, "dial", counted)
        return dialled

    def close(self) -> None:
        for ending in reversed(self._endings):
            ending()
        for opened in self._opened:
            Background(opened.close, f"closing a {type(opened).__name__}").result()
        self._opened.clear()

    def check_nothing_left(self) -> None:
        """No thread and no socket outlives those who opened them."""
        eventually(
            lambda: transport_threads() <= self._threads_before,
            lambda: f"that no thread is left; there are {transport_threads()}",
        )
        eventually(
            lambda: open_sockets() <= self._sockets_before,
            lambda: f"that of {open_sockets()} sockets {self._sockets_before} are left, as before",
        )
