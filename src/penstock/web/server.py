"""The server: where it listens, for how many, and how it ends."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import ssl
import sys
import threading
import time
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from penstock.threads import supervised
from penstock.web.access import Access, new_token
from penstock.web.errors import WebAddressError, WebTlsError
from penstock.web.handler import Handler, Served

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from penstock.web.feeds import Feeds

LOOPBACK: Final = "127.0.0.1"
PORT_DEFAULT: Final = 8642
CONNECTIONS_MAX: Final = 100
"""Each has a thread. A page has one open for good, and a few for a moment."""
HANDSHAKE_SECONDS_MAX: Final = 10.0
PAUSE_SECONDS: Final = 0.05
"""When there is no descriptor to spare: whoever waits would be refused again at once."""


class WebServer:
    """From its making to `close`; a context. It is served by threads of its own."""

    def __init__(
        self,
        feeds: Feeds,
        *,
        host: str = LOOPBACK,
        port: int | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        metrics_open: bool = False,
        token: str | None = None,
    ) -> None:
        """`port` 0: any that is free. None: the usual one, or any if it is taken."""
        context = _tls(host, certificate, key)
        self.token: Final = token or new_token()
        self._http = _listen(host, port, context)
        self.port: Final = int(self._http.server_address[1])
        self._scheme = "http" if context is None else "https"
        self._host = f"[{host}]" if ":" in host else host
        names = {self._host, "localhost"} if context is None else set()
        access = Access(
            self.token,
            self.port,
            frozenset(f"{name}:{self.port}".lower() for name in names),
            is_secure=context is not None,
        )
        self._served = self._http.served = Served(feeds, access, metrics_open=metrics_open)
        self._thread = supervised(
            "web", self._http.serve_forever, 0.1, until=self._served.stopping.is_set
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """What a person opens: it has the token in it."""
        return f"{self.base}/?token={self.token}"

    @property
    def base(self) -> str:
        host = socket.gethostname() if self._host in ("0.0.0.0", "[::]") else self._host  # noqa: S104
        return f"{self._scheme}://{host}:{self.port}"

    def close(self) -> None:
        """Ends all streams; pages say that they have lost us."""
        self._served.stopping.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
        self._served.aborting.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    served: Served
    """Given when the port is known, before anything is served."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._context = context
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__(address, Handler)

    def server_bind(self) -> None:
        # The standard one asks for the machine's name, which can take seconds and is not needed.
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(PAUSE_SECONDS)
            raise  # the loop goes on

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the connection's own thread: a handshake must not hold the others up."""
        if self._context is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(HANDSHAKE_SECONDS_MAX)
        wrapped = self._context.wrap_socket(request, server_side=True)
        try:
            super().finish_request(wrapped, client_address)
        finally:
            wrapped.close()  # the server closes the one that it knows, which is empty by now

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever went away, or speaks another protocol, is nobody's trouble."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _listen(host: str, port: int | None, context: ssl.SSLContext | None) -> _Server:
    try:
        return _Server((host, PORT_DEFAULT if port is None else port), context)
    except OSError as error:
        if error.errno == errno.EADDRINUSE and port is None:
            return _listen(host, 0, context)
        if error.errno == errno.EADDRINUSE:
            raise WebAddressError(
                f"port {port} of {host} is in use; choose another with --port, or --port 0 for any "
                "that is free"
            ) from None
        raise WebAddressError(
            f"cannot listen at {host}, port {port or PORT_DEFAULT}: {error.strerror or error}"
        ) from error


def _tls(host: str, certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        if not _is_loopback(host):
            raise WebTlsError(
                f"{host} can be reached from other machines, so the page needs TLS there: give "
                "--certificate and --key, or leave --host out for this machine only"
            )
        return None
    if certificate is None or key is None:
        raise WebTlsError("a certificate and its key belong together: give --certificate and --key")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise WebTlsError(
            f"{certificate} and {key} cannot be used for TLS: {reason}. They must be PEM, and the "
            "key the certificate's own, without a password"
        ) from error
    return context


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
