"""Arrow Flight between processes of one session: both ends show certificates of its authority.

A Flight server takes a request of any size into memory before it looks at it, and pyarrow offers no
limit. So whoever shows no certificate of the session does not come as far as a request, because the
handshake ends the connection. The token behind it says what the certificate is good for.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

from pyarrow import flight

from penstock.errors import LocalProtocolError
from penstock.transport.certificates import MEMBER_MAX, member_name

if TYPE_CHECKING:
    from penstock.transport.certificates import Material
    from penstock.transport.security import ClusterSecurity, Security

READER: Final = MEMBER_MAX
"""The number that the certificates of readers bear. No member has it."""


class TokenServer(flight.FlightServerBase):
    """Speaks mutual TLS, and to those who show a token."""

    def __init__(self, security: Security, host: str, token: str) -> None:
        material = _material(security)
        host = f"[{host}]" if ":" in host else host
        super().__init__(
            f"grpc+tls://{host}:0",
            tls_certificates=[(material.certificate.decode(), material.key.decode())],
            verify_client=True,
            root_certificates=material.authority.decode(),
        )
        self.location: Final = f"grpc+tls://{host}:{self.port}"
        self._token = token

    def admitted(self, data: bytes) -> bytes:
        """What is asked for, behind the token."""
        shown, _, rest = data.partition(b"\n")
        if not hmac.compare_digest(shown, self._token.encode()):
            raise flight.FlightUnauthenticatedError("this is not the read token of this session")
        return rest


def reader_material(security: ClusterSecurity) -> Material:
    """What those who are no members connect with."""
    return _material(security.member_security(READER))


def connect(location: str, server: int, material: Material) -> flight.FlightClient:
    """To the server of a member, which has to prove that it is that one."""
    return flight.FlightClient(
        location,
        tls_root_certs=material.authority.decode(),
        cert_chain=material.certificate.decode(),
        private_key=material.key.decode(),
        override_hostname=member_name(server),
    )


def _material(security: Security) -> Material:
    if security.credentials is None:
        raise LocalProtocolError("queues are served and read with TLS only, and it is off")
    return security.credentials.load()
