"""Certificates of a cluster's members: made when it starts, and checked before they are used.

A certificate names its member by one DNS name, `member-<id>.penstock`. That name, and not what a
peer says of itself, is who the peer is.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NoReturn

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.errors import ConfigurationError, LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes


VALIDITY: Final = timedelta(days=3650)
"""Longer than any cluster runs. The authority's key dies with the process that made it, so an
earlier end would protect nothing, and would stop a cluster that has run for long."""
CLOCK_SKEW_MAX: Final = timedelta(hours=1)
"""Certificates begin this long before they are made: a member's clock may be behind."""
MEMBER_MAX: Final = 2**64 - 1
"""What the member of a frame holds."""

_COMMON_NAME_BYTES_MAX: Final = 64
"""Of X.509. A longer cluster name is cut: it is there for people, nothing is decided by it."""
_HOST_LENGTH_MAX: Final = 253
"""Of the domain name system."""
_HOST: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_MEMBER_NAME: Final = re.compile(r"member-(0|[1-9][0-9]{0,19})\.penstock")
_LIKE_A_MEMBER_NAME: Final = re.compile(r"member-.*\.penstock\.?", re.IGNORECASE | re.DOTALL)
"""What some TLS library could take for a member's name. A certificate has exactly one of these."""
_DER_BEGIN: Final = b"0"
"""Every certificate as DER is a sequence. Looking for PEM anywhere inside would let a peer hide
another member's certificate in its own."""
_USAGES: Final = (
    (ExtendedKeyUsageOID.SERVER_AUTH, "serverAuth"),
    (ExtendedKeyUsageOID.CLIENT_AUTH, "clientAuth"),
)


class BadCertificateError(ConfigurationError):
    """A certificate, key or authority cannot be used. Replace what the message names."""

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        super().__init__(where, problem, remedy)
        self.where, self.problem, self.remedy = where, problem, remedy

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}; {self.remedy}"


@dataclass(frozen=True, slots=True, repr=False)
class Material:
    """What a member needs for TLS, each as PEM. The certificate may bring its intermediates along,
    and there may be several authorities: while they are exchanged, the old and the new one."""

    certificate: bytes
    key: bytes
    authority: bytes

    def __repr__(self) -> str:
        return "Material(certificate, key, authority)"


@dataclass(frozen=True, slots=True)
class PartNames:
    """How errors name the parts of a material: by file, or by member."""

    certificate: str
    key: str
    authority: str

    @classmethod
    def of_member(cls, member: int) -> PartNames:
        return cls(
            f"the certificate of member {member}",
            f"the key of member {member}",
            f"the authority of member {member}",
        )


@dataclass(frozen=True, slots=True, repr=False)
class CheckedMaterial:
    """A material that passed `check_material`, parsed."""

    chain: tuple[x509.Certificate, ...]
    """The member's certificate, then its intermediates."""
    key: PrivateKeyTypes
    authorities: tuple[x509.Certificate, ...]


class Authority:
    """The certificate authority of one cluster. Its key never leaves this object."""

    __slots__ = ("_certificate", "_key")

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate, self._key = certificate, key

    @classmethod
    def create(cls, cluster: str, *, now: datetime | None = None) -> Authority:
        now = now or datetime.now(UTC)
        key = ec.generate_private_key(ec.SECP256R1())
        common_name = f"penstock {cluster}".encode()[:_COMMON_NAME_BYTES_MAX]
        name = _name(common_name.decode(errors="ignore"))
        builder = _builder(name, name, key.public_key(), now, now + VALIDITY)
        builder = builder.add_extension(x509.BasicConstraints(True, 0), critical=True)
        builder = builder.add_extension(_key_usage(authority=True), critical=True)
        return cls(builder.sign(key, hashes.SHA256()), key)

    @property
    def certificate(self) -> bytes:
        """The authority's own certificate, as PEM: what members trust."""
        return _pem(self._certificate)

    def issue(
        self, member: int, hosts: Sequence[str] = (), *, now: datetime | None = None
    ) -> Material:
        """A new key and certificate for a member, good for both ends of a connection. Members find
        each other by member name; the hosts are for other tools that connect by address."""
        now = now or datetime.now(UTC)
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(member_name(member)), *(_host_name(host) for host in hosts)]
        until = min(now + VALIDITY, self._certificate.not_valid_after_utc)
        builder = _builder(
            _name(member_name(member)), self._certificate.subject, key.public_key(), now, until
        )
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        usages = x509.ExtendedKeyUsage([usage for usage, _ in _USAGES])
        builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
        builder = builder.add_extension(_key_usage(authority=False), critical=True)
        builder = builder.add_extension(usages, critical=False)
        builder = builder.add_extension(issuer, critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        key_pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Material(_pem(certificate), key_pem, self.certificate)

    def __repr__(self) -> str:
        return f"Authority({self._certificate.subject.rfc4514_string()!r})"

    def __reduce__(self) -> NoReturn:
        raise LocalProtocolError(
            "an authority stays in the process that made it, because its key can make any member; "
            "ship what it issued instead"
        )


def member_name(member: int) -> str:
    """The name a member's certificate bears, and by which its server is checked."""
    if not 0 <= member <= MEMBER_MAX:
        raise ConfigurationError(f"a member is a number from 0 to {MEMBER_MAX}, not {member}")
    return f"member-{member}.penstock"


def member_of(certificate: bytes) -> int:
    """The one member that a certificate, as PEM or DER, names. It proves nothing by itself: TLS
    must have verified the certificate before."""
    where = "the certificate"
    if not certificate.startswith(_DER_BEGIN):
        return _member_of(_parse_certificates(certificate, where)[0], where)
    try:
        return _member_of(x509.load_der_x509_certificate(certificate), where)
    except ValueError as error:
        raise _unreadable(where, "a certificate", error) from error


def check_material(
    material: Material,
    member: int,
    *,
    names: PartNames | None = None,
    now: datetime | None = None,
) -> CheckedMaterial:
    """Parses a member's material and checks it as a whole, so that what is wrong is said in plain
    words here and not as a failed handshake on another machine."""
    names = names or PartNames.of_member(member)
    now = now or datetime.now(UTC)
    chain = _parse_certificates(material.certificate, names.certificate)
    key = _parse_key(material.key, names.key)
    authorities = _parse_certificates(material.authority, names.authority)
    if _public_bytes(key.public_key()) != _public_bytes(chain[0].public_key()):
        raise BadCertificateError(
            names.key,
            f"is not the key of {names.certificate}",
            "put the certificate and the key that were made together in place",
        )
    _check_authorities(authorities, names.authority)
    _check_issued(chain, authorities, names, now)
    _check_usages(chain[0], names.certificate)
    named = _member_of(chain[0], names.certificate)
    if named != member:
        raise BadCertificateError(
            names.certificate,
            f"is of member {named}, and member {member} was to use it",
            f"give member {member} a certificate with the DNS name {member_name(member)}",
        )
    return CheckedMaterial(chain, key, authorities)


def _check_authorities(authorities: tuple[x509.Certificate, ...], where: str) -> None:
    """Each authority is trusted by itself, so a member's certificate must not stand among them."""
    for authority in authorities:
        try:
            constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
            is_authority = constraints.value.ca
        except x509.ExtensionNotFound:
            is_authority = False
        if not is_authority:
            raise BadCertificateError(
                where,
                f"the certificate of {authority.subject.rfc4514_string()!r} is not of an authority",
                "put only certificates with the basic constraint CA:TRUE there",
            )


def _check_issued(
    chain: tuple[x509.Certificate, ...],
    authorities: tuple[x509.Certificate, ...],
    names: PartNames,
    now: datetime,
) -> None:
    """Goes from the member's certificate up to an authority, and looks at the dates on the way."""
    current, intermediates = chain[0], list(chain[1:])
    _check_dates(current, names.certificate, now)
    while (authority := _issuer_of(current, authorities)) is None:
        issuer = _issuer_of(current, intermediates)
        if issuer is None:
            raise BadCertificateError(
                names.certificate,
                f"was not signed by {names.authority}",
                "put in place the authority that signed it, or a certificate which that authority "
                "signed, followed by its intermediate certificates",
            )
        intermediates.remove(issuer)
        current = issuer
        _check_dates(current, f"{names.certificate}, an intermediate certificate", now)
    _check_dates(authority, names.authority, now)


def _issuer_of(
    certificate: x509.Certificate, candidates: Iterable[x509.Certificate]
) -> x509.Certificate | None:
    for candidate in candidates:
        try:
            certificate.verify_directly_issued_by(candidate)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            continue
        return candidate
    return None


def _check_dates(certificate: x509.Certificate, where: str, now: datetime) -> None:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        raise BadCertificateError(
            where,
            f"expired on {end:%Y-%m-%d}",
            "renew it, and see that this machine's clock is right",
        )
    if now < begin:
        raise BadCertificateError(
            where,
            f"is not valid before {begin:%Y-%m-%d %H:%M} UTC",
            f"wait, or set the clock of this machine: it says {now:%Y-%m-%d %H:%M} UTC",
        )


def _check_usages(certificate: x509.Certificate, where: str) -> None:
    try:
        allowed = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return  # nothing is ruled out
    missing = [name for usage, name in _USAGES if usage not in allowed]
    if missing:
        raise BadCertificateError(
            where,
            f"does not allow {' or '.join(missing)}",
            "make one with the extended key usages serverAuth and clientAuth: members are both",
        )


def _member_of(certificate: x509.Certificate, where: str) -> int:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = extension.value.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        names = []
    claims = [name for name in names if _LIKE_A_MEMBER_NAME.fullmatch(name)]
    found = _MEMBER_NAME.fullmatch(claims[0]) if len(claims) == 1 else None
    if found is not None and (member := int(found[1])) <= MEMBER_MAX:
        return member
    match claims:
        case []:
            problem = "names no member"
        case [claim]:
            problem = f"names {claim!r}, which is no member"
        case _:
            problem = f"names several members ({', '.join(map(repr, claims[:4]))})"
    remedy = "make one with a single DNS name of the form member-3.penstock, for member 3"
    raise BadCertificateError(where, problem, remedy)


def _parse_certificates(pem: bytes, where: str) -> tuple[x509.Certificate, ...]:
    try:
        certificates = tuple(x509.load_pem_x509_certificates(pem))
        for certificate in certificates:
            _ = certificate.extensions  # parsed only when it is asked for
            certificate.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _unreadable(where, "a certificate as PEM", error) from error
    return certificates


def _parse_key(pem: bytes, where: str) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except TypeError as error:
        raise BadCertificateError(
            where, "is locked with a password", "store it without one, readable by this user only"
        ) from error
    except (ValueError, UnsupportedAlgorithm):
        # The cause is left out: what a parser says of a broken key could quote it.
        raise BadCertificateError(
            where, "is no readable private key", "put a whole private key as PEM there"
        ) from None


def _unreadable(where: str, what: str, error: Exception) -> BadCertificateError:
    reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    return BadCertificateError(where, f"cannot be read ({reason})", f"put {what} there, whole")


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    until: datetime,
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    builder = builder.not_valid_before(now - CLOCK_SKEW_MAX).not_valid_after(until)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key)
    return builder.add_extension(identifier, critical=False)


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        name = host.lower()
    if len(name) > _HOST_LENGTH_MAX or not _HOST.fullmatch(name):
        raise ConfigurationError(
            f"{host[:80]!r} is neither a host name nor an address; write names in ASCII, without "
            "a port or a wildcard"
        )
    if _LIKE_A_MEMBER_NAME.fullmatch(name):
        raise ConfigurationError(f"{host!r} is a member's name, and cannot be a host's")
    return x509.DNSName(name)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _public_bytes(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
