"""A connection to something that is no broker, or a bad one: errors in time, and no memory."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest

from penstock.journal.kafka.client import connection as connections
from penstock.journal.kafka.client.cluster import Cluster
from penstock.journal.kafka.client.connection import Connection
from penstock.journal.kafka.client.failures import AskAgainError
from penstock.journal.kafka.deadline import Deadline
from penstock.journal.kafka.errors import BrokersUnavailableError, KafkaProtocolError
from penstock.journal.kafka.settings import kafka_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECONDS_MAX = 30.0


@contextmanager
def stranger(serve: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """A real listener; `serve` has each connection for itself until it returns."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            with accepted:
                serve(accepted)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def opened(address: tuple[str, int], seconds: float = SECONDS_MAX) -> Connection:
    settings = kafka_settings({"bootstrap.servers": f"{address[0]}:{address[1]}"})
    return Connection(settings, *address, Deadline.after(seconds))


def request_on(connection: socket.socket) -> int:
    """Reads a request; the number that its answer has to carry."""
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    _key, _version, number = struct.unpack_from(">hhi", connection.recv(size, socket.MSG_WAITALL))
    return int(number)


def answer(connection: socket.socket, number: int, body: bytes) -> None:
    connection.sendall(struct.pack(">ii", 4 + len(body), number) + body)


def versions(*keys: tuple[int, int, int]) -> bytes:
    kind = ApiVersionsResponse.ApiVersion
    offered = [kind(api_key=key, min_version=low, max_version=high) for key, low, high in keys]
    return bytes(ApiVersionsResponse(error_code=0, api_keys=offered).encode(version=3))


def test_a_web_server_is_refused_before_memory_is_taken() -> None:
    with (
        stranger(lambda each: each.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as address,
        pytest.raises(KafkaProtocolError, match="claims to have 1213486160 bytes"),
    ):
        opened(address)


def test_a_stranger_may_not_send_much_before_it_names_its_versions() -> None:
    size = connections.STRANGER_BYTES_MAX + 1
    with (
        stranger(lambda each: each.sendall(struct.pack(">i", size))) as address,
        pytest.raises(KafkaProtocolError, match=f"{size} bytes"),
    ):
        opened(address)


def test_an_answer_that_cannot_be_read() -> None:
    with (
        stranger(lambda each: answer(each, request_on(each), b"\x00")) as address,
        pytest.raises(KafkaProtocolError, match="its answer cannot be read"),
    ):
        opened(address)


def test_an_answer_to_another_request() -> None:
    def serve(each: socket.socket) -> None:
        answer(each, request_on(each) + 1, versions((3, 0, 12)))

    with stranger(serve) as address, pytest.raises(KafkaProtocolError, match="another request"):
        opened(address)


def test_silence_ends_with_the_deadline() -> None:
    def serve(each: socket.socket) -> None:
        request_on(each)
        assert each.recv(1) == b""  # until the other end gives up

    with stranger(serve) as address, pytest.raises(AskAgainError, match="took too long to answer"):
        opened(address, 0.3)


def test_a_connection_that_is_closed_in_the_middle_of_an_answer() -> None:
    with (
        stranger(lambda each: each.sendall(struct.pack(">ii", 100, request_on(each)))) as address,
        pytest.raises(AskAgainError, match="closed the connection"),
    ):
        opened(address)


def test_a_broker_that_is_too_old_for_a_request() -> None:
    def serve(each: socket.socket) -> None:
        answer(each, request_on(each), versions((18, 0, 4)))

    with stranger(serve) as address, pytest.raises(KafkaProtocolError, match="does not know this"):
        opened(address).ask(MetadataRequest(topics=[]), Deadline.after(SECONDS_MAX))


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
    cluster = Cluster(kafka_settings({"bootstrap.servers": f"{host}:{port}"}))
    with pytest.raises(BrokersUnavailableError, match=rf"{host}:{port}: .*Connection refused"):
        cluster.topics(None, Deadline.after(0.5))
