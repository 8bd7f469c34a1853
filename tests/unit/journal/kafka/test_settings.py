"""Client settings: what is honoured, what makes no difference, what is refused. No secret shows."""

from __future__ import annotations

import datetime
import pickle
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509 import load_pem_x509_certificate

from penstock.journal.kafka.client.tls import client_context
from penstock.journal.kafka.errors import KafkaSettingError
from penstock.journal.kafka.security import ClientCredentials, Password, Secret, UnsecuredToken
from penstock.journal.kafka.settings import HONOURED, NO_EFFECT, REFUSED, kafka_settings
from penstock.transport.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.journal.kafka.settings import KafkaSettings

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
HIDDEN = "hunter2"


def read(**given: str) -> KafkaSettings:
    named = {f"kafka.{name.replace('_', '.')}": value for name, value in given.items()}
    return kafka_settings({"kafka.bootstrap.servers": "a:1", **named})


def test_the_settings_of_a_plain_cluster() -> None:
    settings = kafka_settings(
        {
            "kafka.bootstrap.servers": "one:9092, SSL://two:9093,[::1]:9094",
            "kafka.client.id": "me",
            "kafka.request.timeout.ms": "5000",
            "kafka.fetch.max.bytes": "1000",
            "kafka.max.partition.fetch.bytes": "10",
            "kafka.receive.buffer.bytes": "-1",
            "kafka.isolation.level": "read_committed",
        }
    )
    assert settings.bootstrap == (("one", 9092), ("two", 9093), ("::1", 9094))
    assert (settings.client_id, settings.request_timeout_seconds) == ("me", 5.0)
    assert (settings.fetch_bytes_max, settings.partition_bytes_max) == (1000, 10)
    assert settings.receive_buffer_bytes == -1
    assert settings.tls is None
    assert settings.sasl is None


@pytest.mark.parametrize("name", sorted(NO_EFFECT))
def test_what_cannot_change_results_is_accepted(name: str) -> None:
    assert kafka_settings({"bootstrap.servers": "a:1", name: "1"}) == read()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_honoured_is_refused_with_a_reason(name: str) -> None:
    with pytest.raises(KafkaSettingError) as refused:
        kafka_settings({"bootstrap.servers": "a:1", name: "x"})
    assert str(refused.value) == f"the Kafka setting 'kafka.{name}' cannot be used: {REFUSED[name]}"


def test_a_setting_is_in_one_table_only() -> None:
    assert not HONOURED & NO_EFFECT
    assert not (HONOURED | NO_EFFECT) & REFUSED.keys()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("bootstrap.servers", "a", "'a' is not of the form host:port"),
        ("bootstrap.servers", " , ", "it is missing"),
        ("fetch.max.bites", "1", "does not know it"),
        ("fetch.max.bytes", "many", "'many' is not a whole number"),
        ("fetch.max.bytes", "-1", "-1 is not between 0"),
        ("isolation.level", "read_uncommitted", "never shown"),
        ("allow.auto.create.topics", "true", "only reads"),
        ("security.protocol", "TLS", "not one of PLAINTEXT, SSL"),
        ("sasl.login.callback.handler.class", "my.Handler", "Kafka's own"),
    ],
)
def test_what_is_wrong_is_named(name: str, value: str, reason: str) -> None:
    with pytest.raises(KafkaSettingError) as refused:
        kafka_settings({"kafka.bootstrap.servers": "a:1", f"kafka.{name}": value})
    assert refused.value.setting == f"kafka.{name}"
    assert reason in str(refused.value)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def sasl(mechanism: str, line: str, **others: str) -> KafkaSettings:
    return read(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_jaas_config=line,
        **others,
    )


@pytest.mark.parametrize(("mechanism", "module"), [("PLAIN", PLAIN), ("SCRAM-SHA-512", SCRAM)])
def test_a_user_and_a_password(mechanism: str, module: str) -> None:
    settings = sasl(mechanism, f'{module} required username="al;ice" password="a\\"b=;{HIDDEN}";')
    assert settings.sasl == Password(mechanism, "al;ice", Secret(f'a"b=;{HIDDEN}'))


def test_client_credentials_and_a_token_that_nobody_signed() -> None:
    url = {"sasl_oauthbearer_token_endpoint_url": "https://idp/token"}
    line = f'{BEARER} required clientId="me" clientSecret="{HIDDEN}" scope="s" extension_x="1" ;'
    assert sasl("OAUTHBEARER", line, **url).sasl == ClientCredentials(
        "https://idp/token", "me", Secret(HIDDEN), "s", (("x", "1"),)
    )
    line = f'{BEARER} required unsecuredLoginStringClaim_sub="me";'
    assert sasl("OAUTHBEARER", line).sasl == UnsecuredToken("me")


@pytest.mark.parametrize(
    ("mechanism", "line", "reason"),
    [
        ("PLAIN", f'{SCRAM} required username="a" password="{HIDDEN}";', "does not go with"),
        ("PLAIN", f'{PLAIN} required username="a" password="{HIDDEN}"', "not of the form"),
        ("PLAIN", f'{PLAIN} required username="{HIDDEN}";', "needs username"),
        ("OAUTHBEARER", f'{BEARER} required clientId="{HIDDEN}";', "needs clientId"),
        (
            "OAUTHBEARER",
            f'{BEARER} required clientId="a" clientSecret="{HIDDEN}";',
            "it is missing",
        ),
        ("GSSAPI", HIDDEN, "GSSAPI is not supported"),
    ],
)
def test_a_wrong_login_is_refused_without_showing_it(
    mechanism: str, line: str, reason: str
) -> None:
    with pytest.raises(KafkaSettingError, match=reason) as refused:
        sasl(mechanism, line)
    assert HIDDEN not in str(refused.value)
    assert HIDDEN not in repr(refused.value)


def stores(folder: Path) -> dict[str, Path]:
    authority = Authority.create("test")
    own = authority.issue(1)
    certificate = load_pem_x509_certificate(own.certificate)
    trusted = load_pem_x509_certificate(authority.certificate)
    key = serialization.load_pem_private_key(own.key, None)
    encryption = serialization.BestAvailableEncryption(HIDDEN.encode())
    assert datetime.datetime.now(datetime.UTC) < certificate.not_valid_after_utc
    contents = {
        "trust.pem": authority.certificate,
        "own.pem": own.key + own.certificate,
        "own.p12": pkcs12.serialize_key_and_certificates(
            b"own",
            key,  # type: ignore[arg-type]  # ours are elliptic
            certificate,
            [trusted],
            encryption,
        ),
        "trust.p12": pkcs12.serialize_java_truststore(
            [pkcs12.PKCS12Certificate(trusted, b"ca")], encryption
        ),
        "old.jks": b"\xfe\xed\xfe\xed" + bytes(20),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in contents}


@pytest.mark.parametrize(("trust", "own"), [("trust.pem", "own.pem"), ("trust.p12", "own.p12")])
def test_certificates_of_files(tmp_path: Path, trust: str, own: str) -> None:
    made = stores(tmp_path)
    settings = read(
        security_protocol="SSL",
        ssl_truststore_location=str(made[trust]),
        ssl_truststore_password=HIDDEN,
        ssl_keystore_location=str(made[own]),
        ssl_keystore_password=HIDDEN,
        ssl_endpoint_identification_algorithm="",
    )
    assert settings.tls is not None
    assert not settings.tls.checks_host_name
    for path in made.values():
        path.unlink()  # members have no such files
    context = client_context(pickle.loads(pickle.dumps(settings)).tls)
    assert len(context.get_ca_certs()) == 1


def test_certificates_within_the_settings(tmp_path: Path) -> None:
    made = stores(tmp_path)
    key, _, certificate = made["own.pem"].read_text().partition("-----BEGIN CERTIFICATE")
    settings = read(
        security_protocol="SSL",
        ssl_truststore_type="PEM",
        ssl_truststore_certificates=made["trust.pem"].read_text(),
        ssl_keystore_certificate_chain="-----BEGIN CERTIFICATE" + certificate,
        ssl_keystore_key=key,
    )
    assert settings.tls is not None
    assert client_context(settings.tls).check_hostname
    assert "PRIVATE KEY" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("ssl_truststore_location", "old.jks", "keytool -importkeystore"),
        ("ssl_truststore_location", "own.p12", "password"),
        ("ssl_truststore_location", "not-there", "No such file"),
        ("ssl_keystore_location", "trust.pem", "no private key"),
        ("ssl_enabled_protocols", "TLSv1.1", "only TLSv1.2 and TLSv1.3"),
        ("ssl_endpoint_identification_algorithm", "ldap", "neither https"),
    ],
)
def test_certificates_that_cannot_be_used(
    tmp_path: Path, name: str, value: str, reason: str
) -> None:
    stores(tmp_path)
    given = str(tmp_path / value) if name.endswith("location") else value
    with pytest.raises(KafkaSettingError, match=reason):
        read(security_protocol="SSL", **{name: given})


def test_no_secret_shows_and_all_of_them_travel() -> None:
    settings = sasl("PLAIN", f'{PLAIN} required username="a" password="{HIDDEN}";')
    assert HIDDEN not in repr(settings)
    assert HIDDEN not in f"{settings} {settings.sasl}"
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert isinstance(settings.sasl, Password)
    assert f"{settings.sasl.password}" == "***"
