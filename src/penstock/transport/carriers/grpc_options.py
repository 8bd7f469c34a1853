"""How gRPC is told to behave at the two ends of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.transport.carriers.grpc_wire import MESSAGE_BYTES_MAX

if TYPE_CHECKING:
    from penstock.transport.timing import Timing

    Options = list[tuple[str, int]]

READ_BYTES: Final = 256 * 1024
"""Taken from a socket at a time."""
LOOKAHEAD_BYTES: Final = 8 * 1024 * 1024
"""What gRPC takes in before it is asked for: it reads on while a message is decoded."""
WRITE_BYTES: Final = 4 * 1024 * 1024
"""What gRPC takes over before it is written: the next message is made meanwhile."""
HTTP2_FRAME_BYTES: Final = 2**24 - 1
"""The largest there is."""


def client_options(timing: Timing) -> Options:
    return [
        *_options(timing),
        ("grpc.use_local_subchannel_pool", 1),  # a connection of its own for each channel
        ("grpc.enable_retries", 0),  # a stream that was lost must be known to be lost
        ("grpc.enable_http_proxy", 0),  # members speak to each other directly
        ("grpc.service_config_disable_resolution", 1),
    ]


def server_options(timing: Timing) -> Options:
    return [
        *_options(timing),
        ("grpc.so_reuseport", 0),  # else two receivers could share a port, and take turns
        ("grpc.http2.max_ping_strikes", 0),  # no limit
        ("grpc.server_handshake_timeout_ms", _milliseconds(timing.connect_seconds_max)),
        ("grpc.max_connection_idle_ms", _milliseconds(timing.silence_seconds_max)),
    ]


def _options(timing: Timing) -> Options:
    """Those of both ends. The sizes are for large batches over a fast network."""
    patience_seconds = timing.silence_seconds_max - timing.heartbeat_seconds
    return [
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small message stays small
        ("grpc.http2.max_frame_size", HTTP2_FRAME_BYTES),
        ("grpc.http2.write_buffer_size", WRITE_BYTES),
        ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
        ("grpc.http2.bdp_probe", 0),  # it would lower that again
        ("grpc.experimental.tcp_read_chunk_size", READ_BYTES),
        ("grpc.experimental.tcp_min_read_chunk_size", READ_BYTES),
        ("grpc.experimental.tcp_max_read_chunk_size", READ_BYTES),
        ("grpc.keepalive_time_ms", _milliseconds(timing.heartbeat_seconds)),
        ("grpc.keepalive_timeout_ms", _milliseconds(patience_seconds)),
        ("grpc.http2.max_pings_without_data", 0),  # no limit
    ]


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
