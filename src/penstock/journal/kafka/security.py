"""How a client proves who it is and whom it trusts, as values.

Secrets are `Secret`s: no repr, log or error shows them. They pickle, because members connect to
brokers themselves; the pickle goes to members over the connection between driver and member, which
is mutual TLS. Files are read where the settings are, at the driver, and travel as their contents:
members need no copies of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
SCRAM_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that nobody is shown. Whoever needs it says so: `secret.text`."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        return "***"


@dataclass(frozen=True, slots=True)
class Tls:
    """What TLS is made of. Certificates and keys are PEM."""

    authorities: str | None = field(default=None, repr=False)
    """Who is trusted; None: whom this machine trusts."""
    certificates: str | None = field(default=None, repr=False)
    """Ours, the own one first, where brokers ask for one."""
    key: Secret | None = None
    key_password: Secret | None = None
    checks_host_name: bool = True
    least_version: str = "TLSv1.2"


@dataclass(frozen=True, slots=True)
class Password:
    """PLAIN and SCRAM."""

    mechanism: str
    user: str
    password: Secret


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """OAUTHBEARER: an identity provider gives a token for an id and a secret."""

    token_url: str
    client_id: str
    client_secret: Secret
    scope: str | None = None
    extensions: tuple[tuple[str, str], ...] = ()
    authorities: str | None = field(default=None, repr=False)
    """Who is trusted to be the provider; None: whom this machine trusts."""


@dataclass(frozen=True, slots=True)
class UnsecuredToken:
    """OAUTHBEARER with a token that nobody signed, as Kafka has it for tests."""

    subject: str
    lifetime_seconds: int = 3600


Sasl: TypeAlias = Password | ClientCredentials | UnsecuredToken
