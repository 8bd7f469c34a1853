"""The receiving processes of the transport benchmark: ours, a bare socket, and Arrow Flight.

Each runs in a process of its own, says where it listens, and serves until it is killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import flight

from penstock.directory.keyvalue import MemoryKeyValue
from penstock.transport import Flush, Flushed, Receiver, VnodeData
from penstock.transport.security import InsecureTransportWarning, Security, server_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

ANSWER: Final = b"."
SLEEP_SECONDS: Final = 3.0


@contextlib.contextmanager
def serving(serve: Callable[..., None], *arguments: object) -> Iterator[tuple[Any, Connection]]:
    """Runs a server in another process; gives what it says first, and the pipe to it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(*arguments, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv(), ours
    finally:
        process.kill()
        process.join()


def serve_ours(security: Security, carrier: str, said: Connection) -> None:
    """Takes every batch; answers a Flush."""
    receiver = _receiver(security, carrier)
    said.send(str(receiver.address))
    rows = 0
    while (first := receiver.receive()) is not None:
        for received in (first, *receiver.drain()):
            match received.frame:
                case VnodeData(batch=batch):
                    rows += batch.num_rows
                case Flush(cycle=cycle):
                    receiver.reply(received.origin, Flushed(cycle, rows))


def serve_sleepily(
    security: Security, carrier: str, inbound_bytes_max: int, said: Connection
) -> None:
    """Takes nothing for a while, then everything; says by how much its memory grew at most."""
    receiver = _receiver(security, carrier, inbound_bytes_max)
    said.send(str(receiver.address))
    before = _memory_bytes_max()
    taken_bytes = 0
    time.sleep(SLEEP_SECONDS)
    asleep = _memory_bytes_max()
    while (received := receiver.receive()) is not None:
        match received.frame:
            case VnodeData(batch=batch):
                taken_bytes += batch.nbytes
            case Flush():
                said.send((asleep - before, _memory_bytes_max() - before, taken_bytes))


def _receiver(security: Security, carrier: str, inbound_bytes_max: int = 64 * 1024**2) -> Receiver:
    warnings.simplefilter("ignore", InsecureTransportWarning)
    return Receiver(
        security,
        MemoryKeyValue(security.member),
        carrier=carrier,
        streams_max=1,
        inbound_bytes_max=inbound_bytes_max,
    )


def _memory_bytes_max() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def serve_socket(security: Security, said: Connection) -> None:
    """Reads messages of a size, as many as it is told, into one buffer; then answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    said.send(listener.getsockname()[1])
    connected, _ = listener.accept()
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if security.credentials is not None:
        connected = server_context(security.credentials).wrap_socket(connected, server_side=True)
    head = bytearray(16)
    buffer = memoryview(pa.allocate_buffer(0))
    while True:
        _receive_exactly(connected, memoryview(head))
        size, count = int.from_bytes(head[:8], "little"), int.from_bytes(head[8:], "little")
        if len(buffer) != size:
            buffer = memoryview(pa.allocate_buffer(size))
        for _ in range(count):
            _receive_exactly(connected, buffer)
        connected.sendall(ANSWER)


def _receive_exactly(connected: socket.socket, view: memoryview) -> None:
    filled = 0
    while filled < len(view):
        count = connected.recv_into(view[filled:])
        if count == 0:
            raise SystemExit
        filled += count


def serve_flight(security: Security, said: Connection) -> None:
    """A Flight server that reads every batch of a `do_put` and drops it."""
    options: dict[str, Any] = {}
    location = "grpc://127.0.0.1:0"
    if security.credentials is not None:
        material = security.credentials.load()
        location = "grpc+tls://127.0.0.1:0"
        options = {
            "tls_certificates": [(material.certificate, material.key)],
            "verify_client": True,
            "root_certificates": material.authority,
        }
    server = _Dropping(location, **options)
    said.send(server.port)
    server.serve()


class _Dropping(flight.FlightServerBase):  # type: ignore[misc, unused-ignore]
    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:  # noqa: ARG002
        rows = 0
        for chunk in reader:
            rows += chunk.data.num_rows
        writer.write(pa.py_buffer(str(rows).encode()))
