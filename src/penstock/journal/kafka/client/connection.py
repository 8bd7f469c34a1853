"""One socket to one broker: requests out, answers in, in order.

The library kafka-python encodes and decodes messages; sockets, sizes and times are ours. A
connection that fails in any way is closed and never used again.
"""

from __future__ import annotations

import io
import socket
import ssl
import struct
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from penstock.journal.kafka.client.authentication import authenticate
from penstock.journal.kafka.client.failures import AskAgainError, described
from penstock.journal.kafka.client.tls import client_context
from penstock.journal.kafka.errors import KafkaProtocolError

if TYPE_CHECKING:
    from penstock.journal.kafka.deadline import Deadline
    from penstock.journal.kafka.settings import KafkaSettings

RESPONSE_BYTES_MAX: Final = 512 << 20
"""More than a fetch of 50 MB, which may exceed its size by one record batch."""
STRANGER_BYTES_MAX: Final = 1 << 20
"""Before the other end has proved to be a broker. Its versions take some kilobytes."""
HEADER_BYTES_MAX: Final = 64
LIFETIME_USED: Final = 0.8
"""Of a login that the broker limits; then a new connection is opened."""
UNSUPPORTED_VERSION: Final = 35
PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TRANSACTION, COMMIT_OFFSETS = 0, 22, 24, 26, 28
OFFSET_FETCH: Final = 9
VERSIONS_MAX: Final = {
    # What comes after these is transaction version 2, where the end of a transaction gives its
    # producer another epoch, or two-phase commit (decision 035).
    PRODUCE: 11,
    INIT_PRODUCER_ID: 5,
    ADD_PARTITIONS: 3,
    END_TRANSACTION: 4,
    COMMIT_OFFSETS: 4,
    # The next one names topics by their ids.
    OFFSET_FETCH: 9,
}
"""The newest versions that we use, where they are not the newest that the library knows."""
_OPENING: Final = (ApiVersionsRequest, SaslHandshakeRequest, SaslAuthenticateRequest)


class Connection:
    """Open from its making on. One thread at a time."""

    def __init__(self, settings: KafkaSettings, host: str, port: int, deadline: Deadline) -> None:
        """Raises `AskAgainError` if the broker cannot be reached, `KafkaAccessError` if it does
        not let us in."""
        self.broker = f"{host}:{port}"
        self._client_id = settings.client_id
        self._numbers = 0
        self._waiting: deque[Any] = deque()
        self._bytes_max = STRANGER_BYTES_MAX
        self._expires_at: float | None = None
        self._versions: dict[int, tuple[int, int]] = {}
        self.is_closed = False
        soon = deadline.sooner(settings.connect_timeout_seconds)
        self._socket = self._connected(settings, host, port, soon)
        try:
            self._open(settings, soon)
        except BaseException:
            self.close()
            raise

    @property
    def is_usable(self) -> bool:
        """False once it has failed, or its login is about to end."""
        is_expired = self._expires_at is not None and time.monotonic() >= self._expires_at
        return not self.is_closed and not (is_expired and not self._waiting)

    def ask(self, request: Any, deadline: Deadline) -> Any:
        """Sends a message of kafka-python's and waits for its answer."""
        self.send(request, deadline)
        return self.receive(deadline)

    def send(self, request: Any, deadline: Deadline) -> None:
        """Several may be sent before their answers are received, in the same order."""
        request.API_VERSION = self.version(type(request))
        self._numbers = (self._numbers + 1) & 0x7FFFFFFF
        request.with_header(self._numbers, self._client_id)
        data = request.encode(header=True, framed=True)
        try:
            self._wait_at_most(deadline)
            self._socket.sendall(data)
        except OSError as error:
            raise self._failed(_reason(error, f"to take {request.name}")) from None
        self._waiting.append(request)

    def receive(self, deadline: Deadline) -> Any:
        """The answer to the first request that has none yet."""
        request = self._waiting.popleft()
        try:
            (size,) = struct.unpack(">i", self._read(4, deadline))
            if not 4 <= size <= self._bytes_max:
                self.close()
                reason = f"its answer claims to have {size} bytes"
                raise KafkaProtocolError(self.broker, request.name, reason)
            data = memoryview(self._read(size, deadline))
        except OSError as error:
            raise self._failed(_reason(error, f"answer {request.name}")) from None
        return self._decoded(request, data)

    def version(self, kind: Any) -> int:
        """The newest version of a message that both ends know."""
        if not self._versions:  # before the broker has said what it knows
            return min(int(kind.max_version), 3) if kind is ApiVersionsRequest else 0
        low, high = self._versions.get(int(kind.API_KEY), (0, -1))
        known = VERSIONS_MAX.get(int(kind.API_KEY), int(kind.max_version))
        version = min(known, high)
        if version < low:
            raise KafkaProtocolError(
                self.broker, kind.name, "it does not know this request in a version that we know; "
                "Kafka 2.1 or later is needed, and 3.0 to look at transactions"
            )  # fmt: skip
        return version

    def close(self) -> None:
        self.is_closed = True
        self._socket.close()

    def close_unless_idle(self) -> None:
        if self._waiting:
            self.close()

    def _open(self, settings: KafkaSettings, deadline: Deadline) -> None:
        self._versions = self._offered(deadline)
        if settings.sasl is not None:
            seconds = authenticate(
                settings.sasl, self.broker, lambda request: self.ask(request, deadline), deadline
            )
            if seconds is not None:
                self._expires_at = time.monotonic() + LIFETIME_USED * seconds
        self._bytes_max = RESPONSE_BYTES_MAX

    def _offered(self, deadline: Deadline) -> dict[int, tuple[int, int]]:
        request = ApiVersionsRequest(client_software_name="penstock", client_software_version="1")
        answer = self.ask(request, deadline)
        if answer.error_code == UNSUPPORTED_VERSION:
            # The broker is older than the request; it says so in the oldest form.
            self._versions = {int(ApiVersionsRequest.API_KEY): (0, 0)}
            answer = self.ask(ApiVersionsRequest(), deadline)
        if answer.error_code:
            reason = described(answer.error_code)
            raise KafkaProtocolError(self.broker, "name its versions", reason)
        return {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}

    def _connected(
        self, settings: KafkaSettings, host: str, port: int, deadline: Deadline
    ) -> socket.socket:
        context = None if settings.tls is None else client_context(settings.tls)
        try:
            plain = socket.create_connection((host, port), timeout=max(deadline.left(), 0.001))
        except OSError as error:
            raise AskAgainError(self.broker, _reason(error, "be reached")) from None
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, size in (
                (socket.SO_RCVBUF, settings.receive_buffer_bytes),
                (socket.SO_SNDBUF, settings.send_buffer_bytes),
            ):
                if size > 0:
                    plain.setsockopt(socket.SOL_SOCKET, option, size)
            return plain if context is None else context.wrap_socket(plain, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            plain.close()
            reason = f"its certificate is not accepted: {error.verify_message}"
            raise KafkaProtocolError(self.broker, "prove who it is", reason) from None
        except OSError as error:
            plain.close()
            raise AskAgainError(self.broker, _reason(error, "speak TLS")) from None

    def _read(self, size: int, deadline: Deadline) -> bytearray:
        data = bytearray(size)
        view, filled = memoryview(data), 0
        while filled < size:
            self._wait_at_most(deadline)
            count = self._socket.recv_into(view[filled:])
            if count == 0:
                raise ConnectionResetError("it closed the connection")
            filled += count
        return data

    def _decoded(self, request: Any, data: memoryview) -> Any:
        kind = request.header.get_response_class()
        head = io.BytesIO(bytes(data[:HEADER_BYTES_MAX]))
        try:
            header = kind.parse_header(head)
            if header.correlation_id != request.header.correlation_id:
                raise ValueError("it answers another request")
            return kind.decode(data[head.tell() :], header=False)
        except (ValueError, IndexError, TypeError, struct.error, UnicodeDecodeError) as error:
            self.close()
            reason = f"its answer cannot be read: {error}"
            raise KafkaProtocolError(self.broker, request.name, reason) from error

    def _wait_at_most(self, deadline: Deadline) -> None:
        left = deadline.left()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)

    def _failed(self, reason: str) -> AskAgainError:
        self.close()
        return AskAgainError(self.broker, reason)


def _reason(error: OSError, what: str) -> str:
    if isinstance(error, TimeoutError):
        return f"it took too long to {what}"
    return f"it could not {what}: {error.strerror or error}"
