"""Raw peers over gRPC: each message is what the test says it is, and is read when it says so."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import grpc
import pyarrow as pa

from penstock.transport.carriers.grpc_wire import METHOD, SERVICE, Envelope, frames_of
from penstock.transport.discovery import Address
from penstock.transport.frames import Frame, VnodeData
from penstock.transport.grpc_security import (
    grpc_channel_credentials,
    grpc_channel_options,
    grpc_server_credentials,
)
from penstock.transport.stages import StageDecoders, StageEncoders
from tests.conformance.raw import BytesPeer, RawListener
from tests.conformance.waiting import WAIT_SECONDS_MAX, Background

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.transport.security import Security
    from tests.conformance.fabric import Fabric

CALLS_MAX = 8


class GrpcPeer(BytesPeer):
    """One end of a call."""

    def __init__(self) -> None:
        self._incoming: Iterator[bytes] = iter(())
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._encoders = StageEncoders()
        self._decoders = StageDecoders()
        self._frames = (frame for message in self._messages() for frame in self._decoded(message))

    def encode(self, frame: Frame) -> bytes:
        return self._message([frame])

    def say_all(self, frames: Iterable[Frame]) -> None:
        self.say_bytes(self._message(frames))

    def _message(self, frames: Iterable[Frame]) -> bytes:
        envelope = Envelope()
        for frame in frames:
            if isinstance(frame, VnodeData):
                pieces = self._encoders.encode(frame.stage, frame.batch)
                envelope.add_data(frame, pieces, sum(map(len, pieces)))
            else:
                envelope.add(frame)
        return envelope.seal()

    def say_bytes(self, data: bytes) -> None:
        self._outgoing.put(data)

    def say_stage(self, stage: str, body: bytes) -> None:
        envelope = Envelope()
        frame = VnodeData(stage, 0, cast(pa.RecordBatch, None))
        envelope.add_data(frame, [body], len(body))
        self.say_bytes(envelope.seal())

    def hear(self) -> tuple[Frame, int] | None:
        return next(self._frames, None)

    def finish(self) -> None:
        self._outgoing.put(None)

    def outgoing(self) -> Iterator[bytes]:
        """What gRPC asks for, in a thread of its own."""
        while (message := self._outgoing.get()) is not None:
            yield message

    def _messages(self) -> Iterator[bytes]:
        while (message := Background(self._next, "hearing a message").result()) is not None:
            yield message

    def _next(self) -> bytes | None:
        try:
            return next(self._incoming, None)
        except grpc.RpcError:
            return None

    def _decoded(self, message: bytes) -> Iterator[tuple[Frame, int]]:
        return frames_of(message, self._decoders)


class GrpcSender(GrpcPeer):
    def __init__(self, address: Address, security: Security, to: int, method: str = METHOD) -> None:
        super().__init__()
        target = f"{address.host}:{address.port}"
        options: list[tuple[str, Any]] = [("grpc.use_local_subchannel_pool", 1)]
        if security.credentials is None:
            self._channel = grpc.insecure_channel(target, options)
        else:
            self._channel = grpc.secure_channel(
                target,
                grpc_channel_credentials(security.credentials),
                [*options, *grpc_channel_options(to)],
            )
        exchange = self._channel.stream_stream(f"/{SERVICE}/{method}", None, None)
        self.call: Any = exchange(self.outgoing())
        self._incoming = iter(self.call)

    def outgoing(self) -> Iterator[bytes]:
        yield b""  # of no frames: with it the call begins
        yield from super().outgoing()

    def cut(self) -> None:
        self.finish()
        self.call.cancel()
        self._channel.close()


class GrpcServed(GrpcPeer):
    def __init__(self, incoming: Iterator[bytes], context: grpc.ServicerContext) -> None:
        super().__init__()
        self._incoming = incoming
        self._context: Any = context

    def cut(self) -> None:
        self.finish()
        self._context.cancel()


class GrpcListener(RawListener):
    def __init__(self, fabric: Fabric, member: int, security: Security) -> None:
        super().__init__(fabric, member)
        self._accepted: queue.SimpleQueue[GrpcServed] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(CALLS_MAX, "test: raw gRPC")
        handler = grpc.stream_stream_rpc_method_handler(self._exchange)
        self._server = grpc.server(
            self._threads,
            handlers=[grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})],
        )
        if security.credentials is None:
            port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            credentials = grpc_server_credentials(security.credentials)
            port = self._server.add_secure_port("127.0.0.1:0", credentials)
        self._server.start()
        fabric.at_end(self._close)
        fabric.publish(member, Address("grpc", "127.0.0.1", port))

    def accept(self) -> GrpcServed:
        served = self._accepted.get(timeout=WAIT_SECONDS_MAX)
        self._fabric.at_end(served.cut)
        return served

    def _exchange(
        self, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        served = GrpcServed(requests, context)
        self._accepted.put(served)
        return served.outgoing()

    def _close(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._accepted.get_nowait().cut()
        self._server.stop(0).wait(WAIT_SECONDS_MAX)
        self._threads.shutdown(cancel_futures=True)
