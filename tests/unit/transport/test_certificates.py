"""Certificates: what the authority makes is good, and what is not good is named in plain words."""

from __future__ import annotations

import copy
import ipaddress
import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigurationError, LocalProtocolError
from penstock.transport.certificates import (
    CLOCK_SKEW_MAX,
    MEMBER_MAX,
    VALIDITY,
    Authority,
    BadCertificateError,
    Material,
    PartNames,
    check_material,
    member_name,
    member_of,
)
from tests.unit.transport.made_certificates import (
    DAY,
    NOW,
    make_issuer,
    new_key,
    pem_of,
    pem_of_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable

AUTHORITY = Authority.create("orders")
ROOT = make_issuer()
NAMES = PartNames("tls/certificate.pem", "tls/key.pem", "tls/authority.pem")
MAIL = x509.RFC822Name("member-3.penstock")
LINK = x509.UniformResourceIdentifier("member-3.penstock")


def parsed(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def der_of(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


@settings(max_examples=30)
@given(st.integers(0, MEMBER_MAX))
def test_a_certificate_names_its_member(member: int) -> None:
    material = AUTHORITY.issue(member)
    assert member_of(material.certificate) == member
    assert member_of(der_of(parsed(material.certificate))) == member
    check_material(material, member)


@pytest.mark.parametrize("member", [-1, MEMBER_MAX + 1])
def test_what_is_no_member_gets_no_certificate(member: int) -> None:
    with pytest.raises(ConfigurationError, match="a member is a number from 0 to"):
        AUTHORITY.issue(member)
    with pytest.raises(ConfigurationError, match="a member is a number from 0 to"):
        member_name(member)


def test_a_strict_verifier_of_others_takes_what_the_authority_makes() -> None:
    """The rules of the public web are stricter than ours; theirs is the oracle."""
    material = AUTHORITY.issue(3, ["worker-0.penstock", "10.1.2.3", "::1"])
    leaf = parsed(material.certificate)
    store = verification.Store([parsed(material.authority)])
    builder = verification.PolicyBuilder().store(store).max_chain_depth(0)
    assert builder.build_client_verifier().verify(leaf, []).chain[0] == leaf
    for host in ("member-3.penstock", "worker-0.penstock"):
        assert builder.build_server_verifier(x509.DNSName(host)).verify(leaf, [])
    for address in ("10.1.2.3", "::1"):
        subject = x509.IPAddress(ipaddress.ip_address(address))
        assert builder.build_server_verifier(subject).verify(leaf, [])
    with pytest.raises(verification.VerificationError):
        builder.build_server_verifier(x509.DNSName("member-4.penstock")).verify(leaf, [])


def test_the_authority_signs_members_and_nothing_below_them() -> None:
    certificate = parsed(AUTHORITY.certificate)
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature
    leaf = parsed(AUTHORITY.issue(3).certificate)
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not leaf.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    key = leaf.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"


def test_certificates_begin_early_and_end_with_their_authority() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    authority = Authority.create("orders", now=start)
    later = start + timedelta(days=100)
    leaf = parsed(authority.issue(3, now=later).certificate)
    assert leaf.not_valid_before_utc == later - CLOCK_SKEW_MAX
    assert leaf.not_valid_after_utc == start + VALIDITY
    assert parsed(authority.certificate).not_valid_before_utc == start - CLOCK_SKEW_MAX


def test_each_key_and_serial_number_is_new() -> None:
    first, second = AUTHORITY.issue(3), AUTHORITY.issue(3)
    assert first.key != second.key
    assert parsed(first.certificate).serial_number != parsed(second.certificate).serial_number


@given(st.text(st.characters(codec="utf-8"), max_size=100))
@example("x" * 200)
@example("ü" * 100)
@settings(max_examples=30)
def test_any_cluster_name_will_do(cluster: str) -> None:
    authority = Authority.create(cluster)
    check_material(authority.issue(0), 0)


@pytest.mark.parametrize(
    "host", ["", "a b", "*.example.org", "a:80", "-a", "a.", "größe.example", "a" * 254, "a\n"]
)
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match="neither a host name nor an address"):
        AUTHORITY.issue(3, [host])


@pytest.mark.parametrize("host", ["member-4.penstock", "MEMBER-4.penstock", "member-x.penstock"])
def test_a_host_cannot_bear_a_members_name(host: str) -> None:
    with pytest.raises(ConfigurationError, match="is a member's name"):
        AUTHORITY.issue(3, [host])


def test_the_authority_is_not_pickled_and_shows_no_key() -> None:
    with pytest.raises(LocalProtocolError, match="stays in the process that made it"):
        pickle.dumps(AUTHORITY)
    with pytest.raises(LocalProtocolError):
        copy.deepcopy(AUTHORITY)
    assert repr(AUTHORITY) == "Authority('CN=penstock orders')"


def test_material_pickles_and_shows_no_key() -> None:
    material = AUTHORITY.issue(3)
    assert pickle.loads(pickle.dumps(material)) == material
    secret = material.key.decode().splitlines()[1]
    for shown in (repr(material), str(material), repr(check_material(material, 3))):
        assert secret not in shown
        assert "BEGIN" not in shown


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (None, "names no member"),
        (["db.example.org"], "names no member"),
        (["worker-3.penstock", "member-3.penstock.example"], "names no member"),
        ([MAIL], "names no member"),
        ([LINK], "names no member"),
        (["member-3.penstock", "member-4.penstock"], "names several members"),
        (["member-3.penstock", "MEMBER-4.Penstock"], "names several members"),
        (["member-3.penstock", "member-4.penstock."], "names several members"),
        (["member-3.penstock", "member-*.penstock"], "names several members"),
        (["Member-3.penstock"], "is no member"),
        (["member-3.penstock."], "is no member"),
        (["member-03.penstock"], "is no member"),
        (["member-+3.penstock"], "is no member"),
        (["member-.penstock"], "is no member"),
        (["member-3.4.penstock"], "is no member"),
        ([f"member-{MEMBER_MAX + 1}.penstock"], "is no member"),
    ],
)
def test_names_that_prove_no_member(
    names: list[str | x509.GeneralName] | None, problem: str
) -> None:
    certificate = ROOT.leaf(names)
    for encoded in (pem_of(certificate), der_of(certificate)):
        with pytest.raises(BadCertificateError, match=problem):
            member_of(encoded)


def test_other_names_beside_the_members_do_not_matter() -> None:
    names: list[str | x509.GeneralName] = ["db.example.org"]
    names += ["worker-0.penstock", MAIL, LINK, "member-7.penstock"]
    assert member_of(pem_of(ROOT.leaf(names))) == 7


def test_a_certificate_inside_a_certificate_proves_nothing() -> None:
    inner = pem_of(ROOT.leaf(["member-5.penstock"]))
    note = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.99999.1"), inner)
    outer = ROOT.leaf(["member-3.penstock"], extra=note)
    assert inner in der_of(outer)
    assert member_of(der_of(outer)) == 3


@given(st.binary(max_size=200))
def test_bytes_that_are_no_certificate_are_refused(data: bytes) -> None:
    with pytest.raises(BadCertificateError, match="cannot be read"):
        member_of(data)


def test_the_material_that_others_make_is_taken() -> None:
    check_material(ROOT.material(3), 3, names=NAMES)
    check_material(ROOT.material(3, usages=None), 3)


def test_intermediate_certificates_may_come_along() -> None:
    middle = make_issuer("middle", ROOT)
    low = make_issuer("low", middle)
    chain = middle.pem + low.pem  # in any order
    assert len(check_material(low.material(3, authority=ROOT.pem, chain=chain), 3).chain) == 3
    with pytest.raises(BadCertificateError, match="was not signed by"):
        check_material(low.material(3, authority=ROOT.pem, chain=low.pem), 3)


def test_an_authority_that_comes_with_the_certificate_is_not_trusted() -> None:
    other = make_issuer("other")
    with pytest.raises(BadCertificateError, match="was not signed by"):
        check_material(other.material(3, authority=ROOT.pem, chain=other.pem), 3)


def test_one_of_several_authorities_is_enough() -> None:
    both = make_issuer("new").pem + ROOT.pem
    assert len(check_material(ROOT.material(3, authority=both), 3).authorities) == 2


def bad(change: Callable[[Material], Material]) -> Material:
    return change(ROOT.material(3))


BEGIN_2020 = datetime(2020, 1, 1, tzinfo=UTC)
OLD = make_issuer("old", begin=BEGIN_2020, end=datetime(2020, 3, 4, 5, tzinfo=UTC))
LATER = datetime(2200, 1, 2, 3, 4, tzinfo=UTC)
"""Not counted from now: the name of a test has it, and must be the same in all test processes."""
LOCKED_KEY = pem_of_key(new_key(), b"secret")


@pytest.mark.parametrize(
    ("material", "where", "problem"),
    [
        (bad(lambda m: replace(m, certificate=b"")), NAMES.certificate, "cannot be read"),
        (
            bad(lambda m: replace(m, certificate=m.certificate[:200])),
            NAMES.certificate,
            "cannot be read",
        ),
        (bad(lambda m: replace(m, certificate=m.key)), NAMES.certificate, "cannot be read"),
        (bad(lambda m: replace(m, key=b"nothing")), NAMES.key, "is no readable private key"),
        (bad(lambda m: replace(m, key=m.key[:100])), NAMES.key, "is no readable private key"),
        (bad(lambda m: replace(m, key=m.certificate)), NAMES.key, "is no readable private key"),
        (bad(lambda m: replace(m, key=LOCKED_KEY)), NAMES.key, "is locked with a password"),
        (
            bad(lambda m: replace(m, key=pem_of_key(new_key()))),
            NAMES.key,
            f"is not the key of {NAMES.certificate}",
        ),
        (bad(lambda m: replace(m, authority=b"-----BEGIN")), NAMES.authority, "cannot be read"),
        (
            bad(lambda m: replace(m, authority=m.certificate)),
            NAMES.authority,
            "is not of an authority",
        ),
        (
            bad(lambda m: replace(m, authority=m.authority + m.certificate)),
            NAMES.authority,
            "is not of an authority",
        ),
        (
            ROOT.material(3, authority=make_issuer().pem),
            NAMES.certificate,
            f"was not signed by {NAMES.authority}",
        ),
        (
            ROOT.material(3, begin=BEGIN_2020, end=datetime(2020, 11, 1, tzinfo=UTC)),
            NAMES.certificate,
            "expired on 2020-11-01",
        ),
        (OLD.material(3), NAMES.authority, "expired on 2020-03-04"),
        (
            ROOT.material(3, begin=LATER, end=LATER + DAY),
            NAMES.certificate,
            f"is not valid before {LATER:%Y-%m-%d %H:%M} UTC",
        ),
        (
            ROOT.material(3, usages=[ExtendedKeyUsageOID.SERVER_AUTH]),
            NAMES.certificate,
            "does not allow clientAuth",
        ),
        (
            ROOT.material(3, usages=[ExtendedKeyUsageOID.CODE_SIGNING]),
            NAMES.certificate,
            "does not allow serverAuth or clientAuth",
        ),
        (ROOT.material(3, names=None), NAMES.certificate, "names no member"),
        (
            ROOT.material(4),
            NAMES.certificate,
            "is of member 4, and member 3 was to use it",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_set_is_refused_by_name(material: Material, where: str, problem: str) -> None:
    with pytest.raises(BadCertificateError) as caught:
        check_material(material, 3, names=NAMES)
    assert caught.value.where == where
    assert problem in caught.value.problem
    assert str(caught.value) == f"{where}: {caught.value.problem}; {caught.value.remedy}"
    assert isinstance(caught.value, ConfigurationError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


def test_an_expired_intermediate_is_found() -> None:
    middle = make_issuer("middle", ROOT, begin=NOW - 3 * DAY, end=NOW - DAY)
    material = middle.material(3, authority=ROOT.pem, chain=middle.pem)
    with pytest.raises(BadCertificateError, match="an intermediate certificate: expired on"):
        check_material(material, 3)


def test_without_files_the_member_is_named() -> None:
    with pytest.raises(BadCertificateError, match=r"^the certificate of member 3: is of member 4"):
        check_material(ROOT.material(4), 3)


@given(st.integers(-3 * 86_400, 3 * 86_400))
def test_dates_are_those_of_the_certificate(offset_seconds: int) -> None:
    now = NOW + timedelta(seconds=offset_seconds)
    certificate = parsed(DATED.certificate)
    inside = certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc
    if inside:
        check_material(DATED, 3, now=now)
    else:
        with pytest.raises(BadCertificateError, match=r"expired on|is not valid before"):
            check_material(DATED, 3, now=now)


DATED = make_issuer(begin=NOW - 99 * DAY, end=NOW + 99 * DAY).material(3)
