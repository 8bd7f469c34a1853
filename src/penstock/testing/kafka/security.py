"""Listeners of a cluster that want proof of who a client is, and what such a client is told.

    users = Users({"alice": "secret"})
    with KafkaCluster(users=users) as kafka:
        Consumer(kafka.client_settings("SASL_TLS", user="alice", mechanism="SCRAM-SHA-512") | {...})

All four listeners are open at once, and each way of SASL on both of its two, beside the plain
listener CLIENT.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigurationError
from penstock.testing.kafka.ports import LOOPBACK
from penstock.transport.certificates import Authority, member_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

SASL: Final = "SASL"
SASL_TLS: Final = "SASL_TLS"
TLS: Final = "TLS"
MUTUAL_TLS: Final = "MUTUAL_TLS"
PROTOCOLS: Final = {
    SASL: "SASL_PLAINTEXT",
    SASL_TLS: "SASL_SSL",
    TLS: "SSL",
    MUTUAL_TLS: "SSL",
}
"""The secured listeners, and Kafka's word for what each speaks."""
SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = ("PLAIN", *SCRAM, OAUTHBEARER)
CLIENT_CERTIFICATE: Final = 1000
"""The number in a client's certificate: above those of nodes."""
CLIENT_PRINCIPAL: Final = f"User:CN={member_name(CLIENT_CERTIFICATE)}"
"""How Kafka calls a client that showed its certificate."""
_MODULES: Final = "org.apache.kafka.common.security"
_SECRET_CHARACTERS: Final = frozenset("\\\"',=[]; \n")
"""What Kafka's own files and options would read as something else."""


@dataclass(frozen=True, slots=True)
class Users:
    """Who may come in. By OAUTHBEARER everybody may, under any name: nobody signs its tokens."""

    passwords: Mapping[str, str] = field(repr=False)
    by_acl: bool = False
    """Whether a user needs an ACL for everything. Nobody has any at first; clients of the listener
    CLIENT may do all, and grant them (`Topics.allow`)."""

    def __post_init__(self) -> None:
        for name, password in self.passwords.items():
            if not name or _SECRET_CHARACTERS & {*name, *password}:
                raise ConfigurationError(
                    f"the user {name!r} of a test cluster needs a name, and no quotes, commas, "
                    "brackets or spaces in it or in its password"
                )

    def format_arguments(self) -> Iterable[str]:
        """Users of SCRAM are part of a node's storage from its making."""
        for name, password in self.passwords.items():
            for mechanism in SCRAM:
                yield from ("--add-scram", f"{mechanism}=[name={name},password={password}]")


class Certificates:
    """Files of certificates for nodes and one client, by an authority of their own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._authority, self._folder = Authority.create("kafka"), folder
        self.authority = self._write("authority.pem", self._authority.certificate)
        """What clients trust."""
        client = self._authority.issue(CLIENT_CERTIFICATE)
        self.client_certificate = self._write("client.pem", client.certificate)
        self.client_key = self._write("client.key", client.key)

    def node(self, node: int) -> Path:
        """A node's key and certificate, in the one file that Kafka wants."""
        made = self._authority.issue(node, [LOOPBACK, "localhost"])
        return self._write(f"node-{node}.pem", made.key + made.certificate)

    def _write(self, name: str, content: bytes) -> Path:
        path = self._folder / name
        path.touch(0o600)
        path.write_bytes(content)
        return path


def secured_settings(users: Users, certificates: Certificates, node: int) -> dict[str, str]:
    """What a node is told for its secured listeners."""
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.node(node)),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        f"listener.name.{MUTUAL_TLS.lower()}.ssl.client.auth": "required",
    }
    for listener in (SASL, SASL_TLS):
        prefix = f"listener.name.{listener.lower()}"
        settings[f"{prefix}.sasl.enabled.mechanisms"] = ",".join(MECHANISMS)
        for mechanism in MECHANISMS:
            settings[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = _login(mechanism, users)
    if users.by_acl:
        settings["authorizer.class.name"] = (
            "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        )
        # The brokers themselves, and whoever comes by CLIENT.
        settings["super.users"] = "User:ANONYMOUS"
    return settings


def client_security(
    listener: str, users: Users, certificates: Certificates, user: str | None, mechanism: str
) -> dict[str, str | bool]:
    """What a client based on librdkafka is told."""
    if listener not in PROTOCOLS:
        raise ConfigurationError(
            f"there is no secured listener {listener!r}: it is one of {', '.join(PROTOCOLS)}"
        )
    settings: dict[str, str | bool] = {"security.protocol": PROTOCOLS[listener]}
    if listener != SASL:
        settings["ssl.ca.location"] = str(certificates.authority)
    if listener == MUTUAL_TLS:
        settings["ssl.certificate.location"] = str(certificates.client_certificate)
        settings["ssl.key.location"] = str(certificates.client_key)
    if listener in (SASL, SASL_TLS):
        settings |= _client_login(mechanism, users, user)
    return settings


def _login(mechanism: str, users: Users) -> str:
    match mechanism:
        case "PLAIN":
            known = " ".join(f'user_{name}="{word}"' for name, word in users.passwords.items())
            return f"{_MODULES}.plain.PlainLoginModule required {known};"
        case "OAUTHBEARER":
            module = f"{_MODULES}.oauthbearer.OAuthBearerLoginModule"
            return f'{module} required unsecuredLoginStringClaim_sub="broker";'
        case _:
            return f"{_MODULES}.scram.ScramLoginModule required;"


def _client_login(mechanism: str, users: Users, user: str | None) -> dict[str, str | bool]:
    if user is None or mechanism not in MECHANISMS:
        raise ConfigurationError(
            f"a client of SASL needs a user, and one of {', '.join(MECHANISMS)}; not {user!r} by "
            f"{mechanism!r}"
        )
    if mechanism == OAUTHBEARER:
        return {
            "sasl.mechanism": mechanism,
            "enable.sasl.oauthbearer.unsecure.jwt": True,
            "sasl.oauthbearer.config": f"principal={user}",
        }
    return {
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": users.passwords.get(user, ""),
    }
