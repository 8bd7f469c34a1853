"""Flight servers: who shows no certificate of the session does not come as far as a request."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow import flight

from penstock.errors import LocalProtocolError
from penstock.shuffle.finding import FinderServer
from penstock.shuffle.flights import TokenServer, connect, reader_material
from penstock.shuffle.handover_serving import HandoverServer
from penstock.shuffle.serving import QueueServer
from penstock.transport.security import ClusterSecurity, InsecureTransportWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.transport.certificates import Material

MEMBER = 7
TOKEN = "a read token of one session"


class Counting(TokenServer):
    """Says what has come as far as a request."""

    def __init__(self, security: ClusterSecurity) -> None:
        super().__init__(security.member_security(MEMBER), "127.0.0.1", TOKEN)
        self.requests: list[bytes] = []

    def do_get(self, _: object, ticket: flight.Ticket) -> flight.FlightDataStream:
        self.requests.append(ticket.ticket)
        self.admitted(ticket.ticket)
        return flight.RecordBatchStream(pa.table({"a": [1]}))

    def close(self) -> None:
        self.shutdown()


@pytest.fixture
def security() -> ClusterSecurity:
    return ClusterSecurity.create("test")


@pytest.fixture
def server(security: ClusterSecurity) -> Iterator[Counting]:
    with contextlib.closing(Counting(security)) as made:
        yield made


def ask(client: flight.FlightClient, token: str = TOKEN) -> None:
    with client:
        options = flight.FlightCallOptions(timeout=60)
        client.do_get(flight.Ticket(f"{token}\n".encode()), options).read_all()


def test_who_has_both_is_served(server: Counting, security: ClusterSecurity) -> None:
    ask(connect(server.location, MEMBER, reader_material(security)))
    with pytest.raises(flight.FlightUnauthenticatedError, match="read token"):
        ask(connect(server.location, MEMBER, reader_material(security)), "another")
    assert len(server.requests) == 2


def no_certificate(location: str, _: Material) -> flight.FlightClient:
    return flight.FlightClient(location, disable_server_verification=True)


def of_another_cluster(location: str, ours: Material) -> flight.FlightClient:
    other = reader_material(ClusterSecurity.create("test"))
    return connect(location, MEMBER, replace(other, authority=ours.authority))


def without_its_key(location: str, ours: Material) -> flight.FlightClient:
    return flight.FlightClient(location, tls_root_certs=ours.authority.decode())


def without_tls(location: str, _: Material) -> flight.FlightClient:
    return flight.FlightClient(location.replace("grpc+tls", "grpc"))


@pytest.mark.parametrize(
    "stranger", [no_certificate, of_another_cluster, without_its_key, without_tls]
)
def test_a_stranger_comes_not_as_far_as_a_request(
    server: Counting,
    security: ClusterSecurity,
    stranger: Callable[[str, Material], flight.FlightClient],
) -> None:
    """Even with the token: what it sends is not read, however large it is."""
    with pytest.raises((flight.FlightError, OSError)):
        ask(stranger(server.location, reader_material(security)))
    assert server.requests == []


def test_all_servers_are_of_this_kind() -> None:
    for kind in flight.FlightServerBase.__subclasses__():
        if kind.__module__.startswith("penstock"):
            assert kind is TokenServer
    assert issubclass(FinderServer, TokenServer)
    assert issubclass(QueueServer, TokenServer)
    assert issubclass(HandoverServer, TokenServer)


def test_without_tls_there_is_none() -> None:
    with pytest.warns(InsecureTransportWarning):
        security = ClusterSecurity.insecure().member_security(1)
    with pytest.raises(LocalProtocolError, match="TLS only"):
        TokenServer(security, "127.0.0.1", TOKEN)
