"""The same credentials for gRPC. Only the carrier that speaks gRPC imports this.

gRPC brings its own TLS library. It takes no lowest version from us; both ends are ours and speak
TLS 1.3 to each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from penstock.transport.certificates import member_name
from penstock.transport.tls import PeerRefusedError, certified_member

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.transport.certificates import Material
    from penstock.transport.tls import Credentials


def grpc_server_credentials(credentials: Credentials) -> grpc.ServerCredentials:
    """Mutual TLS. The material is looked at anew for every connection."""
    given = credentials.load()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        material = credentials.load()
        if material is given:
            return None
        given = material
        return _configuration(material)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(given),
        changed,  # type: ignore[arg-type] # the stubs do not know of None, which means no change
        require_client_authentication=True,
    )


def grpc_channel_credentials(credentials: Credentials) -> grpc.ChannelCredentials:
    """For the next channel. A channel keeps what it was opened with: open another after a while."""
    material = credentials.load()
    return grpc.ssl_channel_credentials(
        root_certificates=material.authority,
        private_key=material.key,
        certificate_chain=material.certificate,
    )


def grpc_channel_options(member: int) -> list[tuple[str, str]]:
    """Makes a channel check that its server is this member, at whatever address it is."""
    return [("grpc.ssl_target_name_override", member_name(member))]


def grpc_peer_member(auth_context: Mapping[str, Any]) -> int:
    """The member that the client's certificate proves, from `context.auth_context()`.

    It reads the whole certificate: the list of alternative names beside it does not tell a DNS name
    from an address for mail, and only the first can prove a member.
    """
    certificates: list[bytes] = list(auth_context.get("x509_pem_cert", ()))
    if len(certificates) != 1:
        raise PeerRefusedError(None, "it showed no certificate, and TLS is on here")
    return certified_member(certificates[0])


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(material.key, material.certificate)], root_certificates=material.authority
    )
