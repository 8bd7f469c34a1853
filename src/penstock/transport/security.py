"""Who may speak in a cluster, and how a connection proves who speaks.

Members speak mutual TLS with certificates of the cluster's own authority, and every stream carries
the cluster's token. A frame is of the member that the certificate proves, or, with TLS off, the
token; what a Hello claims must agree with that.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import threading
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigurationError
from penstock.transport.certificates import Authority, member_name
from penstock.transport.tls import (
    Credentials,
    PeerRefusedError,
    TlsFiles,
    client_context,
    peer_member,
    server_context,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ClusterSecurity",
    "Security",
    "Token",
    "TlsFiles",
    "Credentials",
    "server_context",
    "client_context",
    "member_name",
    "peer_member",
    "PeerRefusedError",
    "InsecureTransportWarning",
]

TOKEN_BYTES: Final = 32
"""Of a generated token: as hard to guess as the key of the HMAC made with it."""
TOKEN_CHARACTERS_MIN: Final = 16
"""Of an operator's own token: whoever overhears a Hello can try tokens until one fits it."""

log = logging.getLogger("penstock.transport")
_insecure_logged: Final = threading.Event()


class InsecureTransportWarning(UserWarning):
    """TLS was turned off. Turn it on, unless nobody else can reach the network."""


@dataclass(frozen=True, slots=True)
class Token:
    """The secret that all members of a cluster share. It is never sent: a Hello carries what only
    its holders can make of it and of the member's number."""

    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) < TOKEN_CHARACTERS_MIN:
            raise ConfigurationError(
                f"a cluster's token has at least {TOKEN_CHARACTERS_MIN} characters, this one has "
                f"{len(self.secret)}; leave it out to have one made"
            )

    @classmethod
    def generate(cls) -> Token:
        return cls(secrets.token_urlsafe(TOKEN_BYTES))

    @classmethod
    def from_text(cls, text: str) -> Token:
        """An operator's own token. Space around it goes: files and variables often end in a line
        break, and two members would differ by it."""
        return cls(text.strip())

    def for_member(self, member: int) -> bytes:
        """What a Hello of this member carries."""
        message = b"penstock member %d" % member
        return hmac.digest(self.secret.encode(), message, hashlib.sha256)

    def proves(self, member: int, presented: bytes) -> bool:
        """Whether who presented this holds the token, and presented it as this member."""
        return hmac.compare_digest(self.for_member(member), presented)


@dataclass(frozen=True, slots=True)
class Security:
    """What one member needs to speak in its cluster. It can be shipped to the process that runs the
    member; the authority's key is no part of it."""

    member: int
    token: Token
    credentials: Credentials | None
    """None if TLS is off. Use `Security.insecure` for that: it says so."""

    @classmethod
    def insecure(cls, member: int, token: Token) -> Security:
        """TLS off. The token still keeps strangers out, but whoever can listen learns all."""
        harm = (
            "whoever can reach the network can read and alter documents, and copy a member's token"
        )
        warnings.warn(
            f"TLS is off: {harm}. Turn it on, or keep the network to the members",
            InsecureTransportWarning,
            stacklevel=2,
        )
        if not _insecure_logged.is_set():
            _insecure_logged.set()
            log.warning("streams of member %d are not encrypted: TLS is off, and %s", member, harm)
        return cls(member, token, None)

    def verify_hello(self, claimed_member: int, token: bytes, proven_member: int | None) -> None:
        """Refuses a peer unless its Hello agrees with what it proved. `proven_member` is that of
        its certificate, and None where there was no TLS."""
        if self.credentials is not None and proven_member is None:
            raise PeerRefusedError(claimed_member, "it showed no certificate, and TLS is on here")
        if proven_member is not None and proven_member != claimed_member:
            raise PeerRefusedError(
                claimed_member, f"its certificate is that of member {proven_member}"
            )
        if not self.token.proves(claimed_member, token):
            raise PeerRefusedError(
                claimed_member, "its token is not the one this cluster has for that member"
            )


@dataclass(frozen=True, slots=True)
class ClusterSecurity:
    """The security of a whole cluster, held where the cluster is started. With an authority it
    cannot be pickled; `member_security` makes what is shipped to a member."""

    token: Token
    authority: Authority | None = None
    files: TlsFiles | None = None

    @classmethod
    def create(
        cls, cluster: str, *, token: Token | None = None, files: TlsFiles | None = None
    ) -> ClusterSecurity:
        """Mutual TLS, with an operator's own files, or with an authority made now."""
        authority = Authority.create(cluster) if files is None else None
        return cls(token or Token.generate(), authority, files)

    @classmethod
    def insecure(cls, *, token: Token | None = None) -> ClusterSecurity:
        """TLS off for all members. The warning comes with the first member."""
        return cls(token or Token.generate())

    def member_security(self, member: int, hosts: Sequence[str] = ()) -> Security:
        """What one member needs, with a new key each time if the authority is ours."""
        if self.authority is not None:
            material = self.authority.issue(member, hosts)
            return Security(member, self.token, Credentials(material, member))
        if self.files is not None:
            return Security(member, self.token, Credentials(self.files.of_member(member), member))
        return Security.insecure(member, self.token)
