"""Certificates as other tools make them, odd ones too: made here, without the code under test."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.transport.certificates import Material
from penstock.transport.tls import TlsFiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Key: TypeAlias = ec.EllipticCurvePrivateKey

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def pem_of_key(key: Key, password: bytes | None = None) -> bytes:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


def pem_of(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


@dataclass(frozen=True)
class Issuer:
    """An authority: a root, or an intermediate if it has a parent."""

    certificate: x509.Certificate
    key: Key

    @property
    def pem(self) -> bytes:
        return pem_of(self.certificate)

    def leaf(
        self,
        names: Sequence[str | x509.GeneralName] | None,
        *,
        key: Key | None = None,
        begin: datetime = NOW - DAY,
        end: datetime = NOW + DAY,
        usages: Sequence[x509.ObjectIdentifier] | None = BOTH,
        extra: x509.ExtensionType | None = None,
        subject: str = "odd",
    ) -> x509.Certificate:
        """A certificate with these names; plain text is a DNS name."""
        builder = builder_of(subject, self, (key or new_key()).public_key(), begin, end)
        builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
        if names is not None:
            general = [x509.DNSName(name) if isinstance(name, str) else name for name in names]
            builder = builder.add_extension(x509.SubjectAlternativeName(general), critical=False)
        if usages is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if extra is not None:
            builder = builder.add_extension(extra, critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def material(
        self,
        member: int,
        *,
        names: Sequence[str | x509.GeneralName] | None = (),
        begin: datetime = NOW - DAY,
        end: datetime = NOW + DAY,
        usages: Sequence[x509.ObjectIdentifier] | None = BOTH,
        authority: bytes | None = None,
        chain: bytes = b"",
    ) -> Material:
        """A member's set. It is whole and right unless told otherwise."""
        key = new_key()
        all_names = None if names is None else [*(names or [f"member-{member}.penstock"])]
        leaf = self.leaf(
            all_names,
            key=key,
            begin=begin,
            end=end,
            usages=usages,
            subject=f"member-{member}.penstock",
        )
        return Material(pem_of(leaf) + chain, pem_of_key(key), authority or self.pem)


def builder_of(
    subject: str,
    issuer: Issuer | None,
    key: ec.EllipticCurvePublicKey,
    begin: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    issuer_name = named(subject) if issuer is None else issuer.certificate.subject
    builder = x509.CertificateBuilder(issuer_name, named(subject), key, x509.random_serial_number())
    return builder.not_valid_before(begin).not_valid_after(end)


def make_issuer(
    name: str = "root",
    parent: Issuer | None = None,
    *,
    path_length: int | None = None,
    begin: datetime = NOW - DAY,
    end: datetime = NOW + DAY,
) -> Issuer:
    key = new_key()
    builder = builder_of(name, parent, key.public_key(), begin, end)
    builder = builder.add_extension(x509.BasicConstraints(True, path_length), critical=True)
    return Issuer(builder.sign(parent.key if parent else key, hashes.SHA256()), key)


def serial_of(pem_or_der: bytes) -> int:
    if pem_or_der.startswith(b"-----"):
        return x509.load_pem_x509_certificate(pem_or_der).serial_number
    return x509.load_der_x509_certificate(pem_or_der).serial_number


def files_in(folder: Path) -> TlsFiles:
    return TlsFiles(folder / "certificate.pem", folder / "key.pem", folder / "authority.pem")


def put(path: Path, data: bytes) -> None:
    """Replaces a file as one should: all of it at once."""
    beside = path.with_suffix(".new")
    beside.write_bytes(data)
    beside.replace(path)


def put_all(files: TlsFiles, material: Material) -> None:
    put(files.certificate, material.certificate)
    put(files.key, material.key)
    put(files.authority, material.authority)
