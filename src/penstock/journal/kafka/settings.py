"""The client settings that Spark's Kafka source takes (`kafka.*`), as one value.

Every setting is in one of three tables: honoured, without effect on what is read, or refused with a
reason. Whatever is in none of them is refused too: a setting that is silently ignored is a setting
that its user believes in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.journal.kafka.errors import KafkaSettingError
from penstock.journal.kafka.jaas import sasl_of
from penstock.journal.kafka.keystores import tls_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.journal.kafka.security import Sasl, Tls

PREFIX: Final = "kafka."
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PORT_MAX: Final = 65_535
INT_MAX: Final = 2**31 - 1

NO_EFFECT: Final = frozenset(
    {
        # Groups: whoever reads is decided by Penstock, not by Kafka's coordinator.
        "group.id", "group.instance.id", "group.protocol", "group.remote.assignor",
        "heartbeat.interval.ms", "session.timeout.ms", "max.poll.interval.ms", "max.poll.records",
        "partition.assignment.strategy", "internal.leave.group.on.close",
        # Commits of offsets: there are none.
        "auto.commit.interval.ms",
        # What a Java client tells of itself to its own machine.
        "auto.include.jmx.reporter", "metric.reporters", "metrics.num.samples",
        "metrics.recording.level", "metrics.sample.window.ms", "enable.metrics.push",
        # Times that change when something is done, and not what comes of it.
        "connections.max.idle.ms", "default.api.timeout.ms", "metadata.max.age.ms",
        "metadata.recovery.strategy", "metadata.recovery.rebootstrap.trigger.ms",
        "reconnect.backoff.ms", "reconnect.backoff.max.ms",
        "socket.connection.setup.timeout.max.ms",
        "sasl.login.refresh.buffer.seconds", "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor", "sasl.login.refresh.window.jitter",
        "sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms",
        "sasl.login.retry.backoff.ms", "sasl.login.retry.backoff.max.ms",
        # We always check checksums, and never ask for internal topics by a pattern.
        "check.crcs", "exclude.internal.topics",
        # Java's implementation of TLS.
        "ssl.provider", "ssl.secure.random.implementation", "ssl.keymanager.algorithm",
        "ssl.trustmanager.algorithm",
    }
)  # fmt: skip
"""Accepted as Spark accepts them: they cannot change what is read."""

REFUSED: Final = {
    "auto.offset.reset": "say where to begin with the option startingOffsets",
    "enable.auto.commit": "Penstock commits no offsets to Kafka; a query's checkpoint has them",
    "key.deserializer": "keys are bytes; decode them in the query, or with the option format",
    "value.deserializer": "values are bytes; decode them in the query, or with the option format",
    "interceptor.classes": "records are read without a Java consumer, which would call them",
    "security.providers": "records are read without Java, which would load them",
    "ssl.engine.factory.class": "TLS is Python's here; name certificates with ssl.keystore.* and "
    "ssl.truststore.*",
    "sasl.client.callback.handler.class": "records are read without Java, which would load it",
    "sasl.login.class": "records are read without Java, which would load it",
    "sasl.kerberos.service.name": "GSSAPI (Kerberos) is not supported; use SCRAM, PLAIN, "
    "OAUTHBEARER or certificates",
}

_LOGIN_HANDLERS: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)
_READ_ELSEWHERE: Final = ("sasl.", "ssl.")
"""Tables of `jaas` and `keystores` say which of these there are."""


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """All that a client is told. Its repr shows no secret; its pickle has them."""

    bootstrap: tuple[tuple[str, int], ...]
    client_id: str = "penstock"
    client_rack: str = ""
    tls: Tls | None = None
    sasl: Sasl | None = None
    request_timeout_seconds: float = 30.0
    connect_timeout_seconds: float = 10.0
    retry_backoff_seconds: float = 0.1
    retry_backoff_seconds_max: float = 1.0
    fetch_bytes_min: int = 1
    fetch_bytes_max: int = 50 << 20
    fetch_wait_ms_max: int = 500
    partition_bytes_max: int = 1 << 20
    receive_buffer_bytes: int = 64 << 10
    """-1: what the system chooses."""
    send_buffer_bytes: int = 128 << 10

    @property
    def servers(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.bootstrap)


def kafka_settings(options: Mapping[str, str]) -> KafkaSettings:
    """Reads options by Kafka's own names, each with or without the prefix `kafka.`. Raises
    `KafkaSettingError` for the first one that cannot be honoured."""
    given = {name.lower().removeprefix(PREFIX): value for name, value in options.items()}
    protocol = given.pop("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise _error("security.protocol", f"it is {protocol!r}, not one of {', '.join(PROTOCOLS)}")
    _check_names(given)
    _check_fixed(given)
    read = _Reader(given)
    return KafkaSettings(
        bootstrap=_addresses(given.get("bootstrap.servers", "")),
        client_id=given.get("client.id") or "penstock",
        client_rack=given.get("client.rack", ""),
        tls=tls_of(given) if protocol in ("SSL", "SASL_SSL") else None,
        sasl=sasl_of(given) if protocol.startswith("SASL_") else None,
        request_timeout_seconds=read.number("request.timeout.ms", 30_000, least=1) / 1000,
        connect_timeout_seconds=read.number("socket.connection.setup.timeout.ms", 10_000, 1) / 1000,
        retry_backoff_seconds=read.number("retry.backoff.ms", 100, least=1) / 1000,
        retry_backoff_seconds_max=read.number("retry.backoff.max.ms", 1_000, least=1) / 1000,
        fetch_bytes_min=read.number("fetch.min.bytes", 1, least=0),
        fetch_bytes_max=read.number("fetch.max.bytes", 50 << 20, least=0),
        fetch_wait_ms_max=read.number("fetch.max.wait.ms", 500, least=0),
        partition_bytes_max=read.number("max.partition.fetch.bytes", 1 << 20, least=0),
        receive_buffer_bytes=read.number("receive.buffer.bytes", 64 << 10, least=-1),
        send_buffer_bytes=read.number("send.buffer.bytes", 128 << 10, least=-1),
    )


HONOURED: Final = frozenset(
    {
        "bootstrap.servers", "client.id", "client.rack", "security.protocol", "request.timeout.ms",
        "socket.connection.setup.timeout.ms", "retry.backoff.ms", "retry.backoff.max.ms",
        "fetch.min.bytes", "fetch.max.bytes", "fetch.max.wait.ms", "max.partition.fetch.bytes",
        "receive.buffer.bytes", "send.buffer.bytes",
        "isolation.level", "allow.auto.create.topics", "client.dns.lookup",
        "sasl.mechanism", "sasl.jaas.config", "sasl.login.callback.handler.class",
        "sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.scope",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.type",
        "ssl.truststore.certificates", "ssl.keystore.location", "ssl.keystore.password",
        "ssl.keystore.type", "ssl.keystore.certificate.chain", "ssl.keystore.key",
        "ssl.key.password", "ssl.endpoint.identification.algorithm", "ssl.protocol",
        "ssl.enabled.protocols",
    }
)  # fmt: skip


def _check_names(given: Mapping[str, str]) -> None:
    for name in given:
        if name in REFUSED:
            raise _error(name, REFUSED[name])
        if name not in HONOURED and name not in NO_EFFECT:
            raise _error(
                name,
                "Penstock does not know it, and does not ignore what it does not know. Correct "
                "its name, or remove it",
            )


def _check_fixed(given: Mapping[str, str]) -> None:
    """Settings of which only one value can be honoured."""
    if given.get("isolation.level", "read_committed").lower() != "read_committed":
        raise _error(
            "isolation.level",
            "rows of open and aborted transactions are never shown; remove it, or say "
            "read_committed",
        )
    if given.get("allow.auto.create.topics", "false").lower() != "false":
        raise _error("allow.auto.create.topics", "Penstock only reads; create the topic first")
    if given.get("client.dns.lookup", "use_all_dns_ips") != "use_all_dns_ips":
        raise _error("client.dns.lookup", "only use_all_dns_ips is supported, which is the default")
    handler = given.get("sasl.login.callback.handler.class")
    if handler is not None and handler not in _LOGIN_HANDLERS:
        raise _error(
            "sasl.login.callback.handler.class",
            f"only Kafka's own {_LOGIN_HANDLERS[0].rpartition('.')[2]} is supported, with "
            "sasl.oauthbearer.token.endpoint.url",
        )


def _addresses(servers: str) -> tuple[tuple[str, int], ...]:
    name = "bootstrap.servers"
    addresses = []
    for server in filter(None, (each.strip() for each in servers.split(","))):
        address = server.rpartition("://")[2]  # Java takes a protocol in front, and ignores it
        host, colon, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
            raise _error(name, f"{server!r} is not of the form host:port")
        addresses.append((host, int(port)))
    if not addresses:
        raise _error(name, "it is missing: name one broker or more, as host:port,host:port")
    return tuple(addresses)


@dataclass(frozen=True, slots=True)
class _Reader:
    given: Mapping[str, str]

    def number(self, name: str, default: int, least: int) -> int:
        text = self.given.get(name)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            raise _error(name, f"{text!r} is not a whole number") from None
        if not least <= value <= INT_MAX:
            raise _error(name, f"{value} is not between {least} and {INT_MAX}")
        return value


def _error(name: str, reason: str) -> KafkaSettingError:
    return KafkaSettingError(PREFIX + name, reason)
