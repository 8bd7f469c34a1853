"""Our client at secured listeners: let in with the right proof, kept out with a wrong one and told
why; and without the right to read, the error says which right is missing."""

from __future__ import annotations

import base64
import http.server
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from penstock.journal.kafka.client.fetching import Want
from penstock.journal.kafka.deadline import Deadline
from penstock.journal.kafka.errors import KafkaAccessError, KafkaProtocolError
from penstock.journal.kafka.log import KafkaLog
from penstock.journal.kafka.records.batches import Partition
from penstock.journal.kafka.settings import kafka_settings
from penstock.testing.kafka import KafkaCluster, Users
from penstock.testing.kafka.security import CLIENT_PRINCIPAL
from tests.kafka.broker import require_kafka

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

SECONDS_MAX = 60.0
PASSWORD = "reader-secret"
MODULES = "org.apache.kafka.common.security"
LOGINS = {
    "PLAIN": f'{MODULES}.plain.PlainLoginModule required username="reader" password="%s";',
    "SCRAM-SHA-256": f'{MODULES}.scram.ScramLoginModule required username="reader" password="%s";',
    "SCRAM-SHA-512": f'{MODULES}.scram.ScramLoginModule required username="reader" password="%s";',
    "OAUTHBEARER": f"{MODULES}.oauthbearer.OAuthBearerLoginModule required "
    'unsecuredLoginStringClaim_sub="reader";',
}


def soon() -> Deadline:
    return Deadline.after(SECONDS_MAX)


@pytest.fixture(scope="module")
def secured() -> Iterator[KafkaCluster]:
    require_kafka()
    with KafkaCluster(users=Users({"reader": PASSWORD}, by_acl=True)) as cluster:
        cluster.topics.create("orders")
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "one"}
        )
        producer.init_transactions(SECONDS_MAX)
        producer.begin_transaction()
        producer.produce("orders", b"paid")
        producer.commit_transaction(SECONDS_MAX)
        for principal in ("User:reader", CLIENT_PRINCIPAL):
            cluster.topics.allow(principal, "topic", "orders", "read", "describe")
        yield cluster


def log_of(
    cluster: KafkaCluster, listener: str, mechanism: str | None = None, password: str = PASSWORD
) -> KafkaLog:
    native = (
        cluster.client_settings(listener)
        if mechanism is None
        else cluster.client_settings(listener, user="reader", mechanism=mechanism)
    )
    given = {
        "kafka.bootstrap.servers": str(native["bootstrap.servers"]),
        "kafka.security.protocol": str(native["security.protocol"]),
    }
    if "ssl.ca.location" in native:
        given["kafka.ssl.truststore.type"] = "PEM"
        given["kafka.ssl.truststore.location"] = str(native["ssl.ca.location"])
    if "ssl.key.location" in native:
        given["kafka.ssl.keystore.certificate.chain"] = Path(
            str(native["ssl.certificate.location"])
        ).read_text()
        given["kafka.ssl.keystore.key"] = Path(str(native["ssl.key.location"])).read_text()
    if mechanism is not None:
        line = LOGINS[mechanism]
        given["kafka.sasl.mechanism"] = mechanism
        given["kafka.sasl.jaas.config"] = line % password if "%s" in line else line
    return KafkaLog(kafka_settings(given))


def value_read(log: KafkaLog) -> object:
    decoded = log.read(Partition("orders", 0), Want(0), soon()).decoded
    return decoded.rows["value"][0].as_py()


@pytest.mark.parametrize("mechanism", LOGINS)
@pytest.mark.parametrize("listener", ["SASL", "SASL_TLS"])
def test_every_way_of_sasl(secured: KafkaCluster, listener: str, mechanism: str) -> None:
    with log_of(secured, listener, mechanism) as log:
        assert value_read(log) == b"paid"


def test_a_certificate_of_our_own(secured: KafkaCluster) -> None:
    with log_of(secured, "MUTUAL_TLS") as log:
        assert value_read(log) == b"paid"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_told_and_not_shown(secured: KafkaCluster, mechanism: str) -> None:
    with (
        log_of(secured, "SASL", mechanism, "wrong-secret") as log,
        pytest.raises(KafkaAccessError, match="refused to let us log in") as refused,
    ):
        log.topics(soon())
    assert "wrong-secret" not in str(refused.value)


def test_a_broker_that_we_do_not_trust(secured: KafkaCluster) -> None:
    servers = str(secured.client_settings("TLS")["bootstrap.servers"])
    settings = {"kafka.bootstrap.servers": servers, "kafka.security.protocol": "SSL"}
    with (
        KafkaLog(kafka_settings(settings)) as log,
        pytest.raises(KafkaProtocolError, match="its certificate is not accepted"),
    ):
        log.topics(soon())


def test_a_listener_that_speaks_something_else(secured: KafkaCluster) -> None:
    servers = str(secured.client_settings("TLS")["bootstrap.servers"])
    with (
        KafkaLog(kafka_settings({"kafka.bootstrap.servers": servers})) as log,
        pytest.raises(KafkaProtocolError, match=r"claims to have \d+ bytes"),
    ):
        log.topics(soon())


def test_which_right_is_missing(secured: KafkaCluster) -> None:
    secured.topics.create("secret")
    with log_of(secured, "SASL", "PLAIN") as log:
        assert "secret" not in log.topics(soon())
        with pytest.raises(KafkaAccessError, match="Describe and Read the topic"):
            log.read(Partition("secret", 0), Want(0), soon())
        with pytest.raises(KafkaAccessError, match=r"kafka-acls\.sh .*__transaction_state"):
            log.transaction_tail().read(soon())
        secured.topics.allow("User:reader", "topic", "__transaction_state", "read", "describe")
        entries = log.transaction_tail().read(soon()).entries
        assert {each.transactional_id for each in entries} == {"one"}


def test_a_token_of_an_identity_provider(secured: KafkaCluster) -> None:
    """The provider is a real server of HTTP; the broker takes any token that is well formed."""
    asked: list[str] = []

    class Provider(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(str(self.headers["Authorization"]))
            self.rfile.read(int(self.headers["Content-Length"]))
            is_known = base64.b64encode(b"me:hunter2").decode() in asked[-1]
            self.send_response(200 if is_known else 401)
            self.end_headers()
            parts = ({"alg": "none"}, {"sub": "reader", "iat": 1, "exp": 4_000_000_000})
            token = ".".join(
                base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
                for part in parts
            )
            self.wfile.write(json.dumps({"access_token": f"{token}."}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        for secret, is_right in (("hunter2", True), ("hunter3", False)):
            given = {
                "kafka.bootstrap.servers": secured.addresses("SASL"),
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "OAUTHBEARER",
                "kafka.sasl.oauthbearer.token.endpoint.url": (
                    f"http://127.0.0.1:{server.server_port}/token"
                ),
                "kafka.sasl.jaas.config": f"{MODULES}.oauthbearer.OAuthBearerLoginModule required "
                f'clientId="me" clientSecret="{secret}";',
            }
            with KafkaLog(kafka_settings(given)) as log:
                if is_right:
                    assert value_read(log) == b"paid"
                else:
                    with pytest.raises(KafkaAccessError, match="answered 401") as refused:
                        value_read(log)
                    assert "hunter3" not in str(refused.value)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert asked
