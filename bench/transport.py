"""The shuffle transport between two processes over loopback, beside what it is built on.

`tcp` is measured beside a bare socket that moves the same bytes in the same sizes and looks at
none of them; `grpc` beside Arrow Flight's `do_put` of the same batches. Ours decodes, counts
credits, checks checksums (tcp) and goes through the inbox. Each call moves 64 MiB, and ends when
the other process has answered that it took the last of it. Rows have 128 bytes.

On loopback our tcp carrier asks the system not to pace (`reno` in place of, here, `bbr`); the bare
socket is as the system makes it. `same_control` gives it what ours has.

The last lines push 2 GiB at a receiver whose consumer sleeps at first. Their figures are no rates:
"ours" is by how much the receiving process grew at most, "peer" is the window it was given.
"""

from __future__ import annotations

import contextlib
import socket
import warnings
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa
from pyarrow import flight

from bench.report import Line, in_turns
from bench.transport_servers import (
    ANSWER,
    serve_flight,
    serve_ours,
    serve_sleepily,
    serve_socket,
    serving,
)
from penstock.directory.keyvalue import MemoryKeyValue
from penstock.transport import Flush, Sender, VnodeData
from penstock.transport.discovery import ADDRESS_KEY
from penstock.transport.security import (
    ClusterSecurity,
    InsecureTransportWarning,
    Security,
    client_context,
    member_name,
)
from penstock.transport.stages import StageEncoders
from penstock.transport.wire import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH_BYTES: Final = (64 * 1024, 1024 * 1024, 8 * 1024 * 1024)
CALL_BYTES: Final = 64 * 1024 * 1024
ROW_BYTES: Final = 128
PROCESSES: Final = 5
"""Receivers that each side is given, one after the other. Some are twice as fast as others for as
long as they live, wherever their memory and threads happened to be put; Flight's most of all."""
ROUNDS: Final = 7
"""With each of them."""
PUSHED_BYTES: Final = 2 * 1024**3
WINDOW_BYTES: Final = 32 * 1024 * 1024

CLIENT: Final = 1
SERVER: Final = 2

Mover: TypeAlias = "Callable[[pa.RecordBatch], Callable[[], object]]"
"""Makes, for a batch, the function that moves CALL_BYTES of it."""
Peer: TypeAlias = "Callable[[contextlib.ExitStack, Security, Security], Mover]"


def run() -> Iterator[Line]:
    warnings.simplefilter("ignore", InsecureTransportWarning)
    for label, cluster in (
        ("", ClusterSecurity.insecure()),
        ("_tls", ClusterSecurity.create("bench")),
    ):
        for carrier, peer in (
            ("tcp", socket_call),
            ("tcp_same_control", unpaced_socket_call),
            ("grpc", flight_call),
        ):
            rates = rates_by_size(cluster, carrier.split("_")[0], peer)
            for size, (ours, peers) in rates.items():
                name = f"transport.{carrier}{label}.{size // 1024}_KiB"
                yield Line.of_rounds(name, ours, peers, "B/s")
    for carrier in ("tcp", "grpc"):
        yield push(carrier)


def rates_by_size(
    cluster: ClusterSecurity, carrier: str, peer: Peer
) -> dict[int, tuple[list[float], list[float]]]:
    client, server = (cluster.member_security(member) for member in (CLIENT, SERVER))
    rates: dict[int, tuple[list[float], list[float]]] = {size: ([], []) for size in BATCH_BYTES}
    for _ in range(PROCESSES):
        with contextlib.ExitStack() as stack:
            ours_of = ours_call(stack, client, server, carrier)
            peer_of = peer(stack, client, server)
            for size, sides in rates.items():
                batch = batch_of(size)
                found = in_turns(ours_of(batch), peer_of(batch), CALL_BYTES, ROUNDS)
                for side, more in zip(sides, found, strict=True):
                    side.extend(more)
    return rates


def batch_of(size: int) -> pa.RecordBatch:
    """A key, and a value that fills the row."""
    rows = size // ROW_BYTES
    value = np.random.default_rng(7).bytes(rows * (ROW_BYTES - 8))
    values = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(ROW_BYTES - 8), rows, [None, pa.py_buffer(value)]
    )
    return pa.record_batch([pa.array(np.arange(rows)), cast(Any, values)], ["key", "value"])


def sender_to(stack: contextlib.ExitStack, client: Security, address: str) -> Sender:
    keyvalue = MemoryKeyValue(SERVER)
    keyvalue.write(ADDRESS_KEY, address)
    return stack.enter_context(Sender(client, keyvalue.view(CLIENT)))


def ours_call(
    stack: contextlib.ExitStack, client: Security, server: Security, carrier: str
) -> Mover:
    address, _ = stack.enter_context(serving(serve_ours, server, carrier))
    sender = sender_to(stack, client, address)
    cycles = iter(range(1, 10**9))

    def move(batch: pa.RecordBatch) -> None:
        for _ in range(CALL_BYTES // batch.nbytes):
            sender.send(SERVER, VnodeData("bench", 0, batch))
        cycle = next(cycles)
        sender.send(SERVER, Flush(cycle))
        answer = sender.receive_flushed(60)
        if answer is None or answer[1].cycle != cycle:
            raise RuntimeError(f"no answer to cycle {cycle}: {sender.losses()}")

    return lambda batch: lambda: move(batch)


def unpaced_socket_call(stack: contextlib.ExitStack, client: Security, server: Security) -> Mover:
    return socket_call(stack, client, server, control=b"reno")


def socket_call(
    stack: contextlib.ExitStack, client: Security, server: Security, control: bytes = b""
) -> Mover:
    port, _ = stack.enter_context(serving(serve_socket, server))
    connected = socket.create_connection(("127.0.0.1", port))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if control:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control)
    if client.credentials is not None:
        connected = client_context(client.credentials).wrap_socket(
            connected, server_hostname=member_name(SERVER)
        )
    stack.enter_context(connected)

    def move(message: bytes, count: int) -> None:
        connected.sendall(len(message).to_bytes(8, "little") + count.to_bytes(8, "little"))
        for _ in range(count):
            connected.sendall(message)
        if connected.recv(1) != ANSWER:
            raise RuntimeError("the bare socket's peer is gone")

    def of(batch: pa.RecordBatch) -> Callable[[], object]:
        encoders = StageEncoders()
        encode(VnodeData("bench", 0, batch), encoders)  # with the schema; later frames are without
        message = b"".join(encode(VnodeData("bench", 0, batch), encoders).pieces)
        return lambda: move(message, CALL_BYTES // batch.nbytes)

    return of


def flight_call(stack: contextlib.ExitStack, client: Security, server: Security) -> Mover:
    port, _ = stack.enter_context(serving(serve_flight, server))
    options: dict[str, Any] = {}
    scheme = "grpc"
    if client.credentials is not None:
        material = client.credentials.load()
        scheme = "grpc+tls"
        options = {
            "tls_root_certs": material.authority,
            "cert_chain": material.certificate,
            "private_key": material.key,
            "override_hostname": member_name(SERVER),
        }
    connected = flight.FlightClient(f"{scheme}://127.0.0.1:{port}", **options)
    stack.callback(connected.close)

    def move(batch: pa.RecordBatch) -> None:
        descriptor = flight.FlightDescriptor.for_path("bench")
        writer, answers = connected.do_put(descriptor, batch.schema)
        for _ in range(CALL_BYTES // batch.nbytes):
            writer.write_batch(batch)
        writer.done_writing()
        if cast(Any, answers).read() is None:
            raise RuntimeError("Flight did not answer")
        writer.close()

    return lambda batch: lambda: move(batch)


def push(carrier: str) -> Line:
    cluster = ClusterSecurity.insecure()
    client, server = (cluster.member_security(member) for member in (CLIENT, SERVER))
    batch = batch_of(1024 * 1024)
    with contextlib.ExitStack() as stack:
        address, said = stack.enter_context(serving(serve_sleepily, server, carrier, WINDOW_BYTES))
        sender = sender_to(stack, client, address)
        for _ in range(PUSHED_BYTES // batch.nbytes):
            sender.send(SERVER, VnodeData("bench", 0, batch))
        sender.send(SERVER, Flush(1))
        _, grown_bytes, taken_bytes = said.recv()
    if taken_bytes != PUSHED_BYTES:
        raise RuntimeError(f"{taken_bytes} of {PUSHED_BYTES} bytes arrived")
    return Line.of(f"transport.{carrier}.memory_growth", grown_bytes, WINDOW_BYTES, "B")
