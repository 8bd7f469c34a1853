"""TLS from Java's settings: keystores and truststores, as PEM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from penstock.journal.kafka.errors import KafkaSettingError
from penstock.journal.kafka.security import Secret, Tls

if TYPE_CHECKING:
    from collections.abc import Mapping

STORE_BYTES_MAX: Final = 4 << 20
"""A truststore of all public authorities is a tenth of this."""
VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_JKS_MAGICS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_TYPES: Final = ("JKS", "PKCS12", "PEM")
_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"


def tls_of(given: Mapping[str, str]) -> Tls:
    """What the settings `ssl.*` say."""
    certificates, key = _own(given)
    password = given.get("ssl.key.password")
    return Tls(
        authorities=authorities_of(given),
        certificates=certificates,
        key=key,
        key_password=None if password is None else Secret(password),
        checks_host_name=_checks_host_name(given),
        least_version=_least_version(given),
    )


def authorities_of(given: Mapping[str, str]) -> str | None:
    """The certificates that are trusted; None if none are named."""
    text = given.get("ssl.truststore.certificates")
    if text is not None:
        return _checked_pem("ssl.truststore.certificates", text)
    store = _store(given, "ssl.truststore")
    if store is None:
        return None
    name = "ssl.truststore.location"
    if _is_pem(given, "ssl.truststore", store):
        return _checked_pem(name, store.decode("ascii", "replace"))
    found = _pkcs12(given, "ssl.truststore", store)
    certificates = [found.cert, *found.additional_certs] if found.cert else found.additional_certs
    if not certificates:
        raise _error(name, "the truststore has no certificate of an authority in it")
    return "".join(
        each.certificate.public_bytes(serialization.Encoding.PEM).decode() for each in certificates
    )


def _own(given: Mapping[str, str]) -> tuple[str | None, Secret | None]:
    """Our certificates and key."""
    chain, key = given.get("ssl.keystore.certificate.chain"), given.get("ssl.keystore.key")
    if (chain is None) != (key is None):
        raise _error("ssl.keystore.key", "it goes together with ssl.keystore.certificate.chain")
    if chain is not None and key is not None:
        return _checked_pem("ssl.keystore.certificate.chain", chain), Secret(key)
    store = _store(given, "ssl.keystore")
    if store is None:
        return None, None
    if _is_pem(given, "ssl.keystore", store):
        text = store.decode("ascii", "replace")
        if "PRIVATE KEY-----" not in text:
            raise _error("ssl.keystore.location", "the file has no private key in it")
        return _checked_pem("ssl.keystore.location", text), Secret(text)
    found = _pkcs12(given, "ssl.keystore", store)
    if found.key is None or found.cert is None:
        raise _error("ssl.keystore.location", "the keystore has no key with a certificate in it")
    pem = serialization.Encoding.PEM
    certificates = "".join(
        each.certificate.public_bytes(pem).decode()
        for each in (found.cert, *found.additional_certs)
    )
    own = found.key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificates, Secret(own.decode())


def _store(given: Mapping[str, str], prefix: str) -> bytes | None:
    location = given.get(f"{prefix}.location")
    if location is None:
        return None
    kind = given.get(f"{prefix}.type", "JKS").upper()
    if kind not in _TYPES:
        raise _error(f"{prefix}.type", f"it is {kind!r}, not one of {', '.join(_TYPES)}")
    try:
        with Path(location).open("rb") as file:
            store = file.read(STORE_BYTES_MAX + 1)
    except OSError as error:
        raise _error(f"{prefix}.location", f"{location} cannot be read: {error.strerror}") from None
    if len(store) > STORE_BYTES_MAX:
        raise _error(f"{prefix}.location", f"{location} has more than {STORE_BYTES_MAX} bytes")
    if store.startswith(_JKS_MAGICS):
        # Java's own old form; the one library for it was last released in 2017.
        raise _error(
            f"{prefix}.location",
            f"{location} is in Java's old form JKS. Convert it: keytool -importkeystore "
            f"-srckeystore {location} -destkeystore {location}.p12 -deststoretype PKCS12; then "
            f"name the new file, with {prefix}.type PKCS12",
        )
    return store


def _is_pem(given: Mapping[str, str], prefix: str, store: bytes) -> bool:
    return given.get(f"{prefix}.type", "").upper() == "PEM" or _CERTIFICATE in store


def _pkcs12(given: Mapping[str, str], prefix: str, store: bytes) -> pkcs12.PKCS12KeyAndCertificates:
    password = given.get(f"{prefix}.password")
    try:
        return pkcs12.load_pkcs12(store, None if password is None else password.encode())
    except ValueError:
        location = given[f"{prefix}.location"]
        raise _error(
            f"{prefix}.location",
            f"{location} cannot be opened: its password ({prefix}.password) is wrong, or it is no "
            "keystore of the form PKCS12",
        ) from None


def _checked_pem(name: str, text: str) -> str:
    if _CERTIFICATE.decode() not in text:
        raise _error(name, "there is no certificate in it, as PEM")
    return text


def _checks_host_name(given: Mapping[str, str]) -> bool:
    name = "ssl.endpoint.identification.algorithm"
    algorithm = given.get(name, "https").lower()
    if algorithm not in ("https", ""):
        raise _error(name, "it is neither https nor empty")
    return algorithm == "https"


def _least_version(given: Mapping[str, str]) -> str:
    for name in ("ssl.protocol", "ssl.enabled.protocols"):
        versions = [each.strip() for each in given.get(name, "").split(",") if each.strip()]
        if any(version not in (*VERSIONS, "TLS") for version in versions):
            raise _error(name, f"only {' and '.join(VERSIONS)} are spoken")
        if name == "ssl.enabled.protocols" and versions == ["TLSv1.3"]:
            return "TLSv1.3"
        if name == "ssl.enabled.protocols" and versions == ["TLSv1.2"]:
            raise _error(name, "a client that refuses TLSv1.3 is not supported; remove it")
    return "TLSv1.2"


def _error(name: str, reason: str) -> KafkaSettingError:
    return KafkaSettingError(f"kafka.{name}", reason)
