"""Tokens, Hellos and what is shipped to a member: who is believed, and what stays secret."""

from __future__ import annotations

import hashlib
import hmac
import logging
import pickle
import warnings
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from penstock.transport import security as module
from penstock.transport.certificates import member_of
from penstock.transport.security import (
    TOKEN_CHARACTERS_MIN,
    ClusterSecurity,
    Credentials,
    InsecureTransportWarning,
    PeerRefusedError,
    Security,
    TlsFiles,
    Token,
)
from tests.unit.transport.made_certificates import make_issuer, put_all

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = Token("correct horse battery staple")
OTHER = Token("correct horse battery stable")
CLUSTER = ClusterSecurity.create("orders", token=TOKEN)
SECURE = CLUSTER.member_security(1)
MEMBERS = st.integers(0, 2**64 - 1)
SECRETS = st.text(st.characters(codec="utf-8"), min_size=TOKEN_CHARACTERS_MIN, max_size=80)


@given(SECRETS, MEMBERS)
def test_a_hello_carries_the_hmac_of_the_member(secret: str, member: int) -> None:
    expected = hmac.new(secret.encode(), f"penstock member {member}".encode(), hashlib.sha256)
    assert Token(secret).for_member(member) == expected.digest()
    assert Token(secret).proves(member, expected.digest())


@given(SECRETS, SECRETS, MEMBERS, MEMBERS)
def test_a_token_proves_one_member_of_one_cluster(
    secret: str, other_secret: str, member: int, other_member: int
) -> None:
    assume(secret.rstrip("\0") != other_secret.rstrip("\0"))  # HMAC fills short keys with zeros
    assume(member != other_member)
    token, presented = Token(secret), Token(secret).for_member(member)
    assert not token.proves(other_member, presented)
    assert not Token(other_secret).proves(member, presented)


@given(st.binary(max_size=70))
def test_other_bytes_prove_nothing(presented: bytes) -> None:
    assert not TOKEN.proves(3, presented)
    assert not TOKEN.proves(3, TOKEN.for_member(3)[:-1])
    assert not TOKEN.proves(3, TOKEN.for_member(3) + presented[:1] + b"x")


def test_generated_tokens_differ_and_are_long() -> None:
    tokens = {Token.generate().secret for _ in range(100)}
    assert len(tokens) == 100
    # 32 bytes of randomness are 43 characters of base64.
    assert {len(token) for token in tokens} == {43}


@pytest.mark.parametrize("text", ["", "short", "x" * 15, "  " + "x" * 15 + "\n"])
def test_a_short_token_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigurationError, match="has at least 16 characters") as caught:
        Token.from_text(text)
    assert not text.strip() or text.strip() not in str(caught.value)


def test_space_around_an_operators_token_does_not_count() -> None:
    assert Token.from_text("\t sixteen letters!\r\n") == Token("sixteen letters!")


@given(MEMBERS)
def test_a_member_is_let_in_with_its_certificate_and_token(member: int) -> None:
    SECURE.verify_hello(member, TOKEN.for_member(member), member)
    bare().verify_hello(member, TOKEN.for_member(member), None)


def bare() -> Security:
    return Security(1, TOKEN, None)


@pytest.mark.parametrize(
    ("security", "claimed", "token", "proven", "reason"),
    [
        (SECURE, 3, TOKEN.for_member(3), None, "showed no certificate"),
        (SECURE, 3, TOKEN.for_member(3), 4, "its certificate is that of member 4"),
        (SECURE, 3, TOKEN.for_member(4), 4, "its certificate is that of member 4"),
        (SECURE, 3, TOKEN.for_member(4), 3, "its token is not the one"),
        (SECURE, 3, OTHER.for_member(3), 3, "its token is not the one"),
        (SECURE, 3, b"", 3, "its token is not the one"),
        (SECURE, 0, b"", None, "showed no certificate"),
        (bare(), 3, OTHER.for_member(3), None, "its token is not the one"),
        (bare(), 3, TOKEN.for_member(4), None, "its token is not the one"),
        (bare(), 3, TOKEN.for_member(3), 4, "its certificate is that of member 4"),
    ],
)
def test_a_hello_that_does_not_agree_is_refused(
    security: Security, claimed: int, token: bytes, proven: int | None, reason: str
) -> None:
    with pytest.raises(PeerRefusedError) as caught:
        security.verify_hello(claimed, token, proven)
    shown = str(caught.value)
    assert reason in shown
    assert f"as member {claimed}" in shown
    assert isinstance(caught.value, RemoteProtocolError)
    for secret in (TOKEN.secret, TOKEN.for_member(claimed).hex(), repr(TOKEN.for_member(claimed))):
        assert secret not in shown
    assert str(pickle.loads(pickle.dumps(caught.value))) == shown


@given(MEMBERS, MEMBERS, MEMBERS, st.booleans())
def test_a_hello_is_believed_only_when_everything_agrees(
    claimed: int, token_of: int, proven: int, right_cluster: bool
) -> None:
    token = (TOKEN if right_cluster else OTHER).for_member(token_of)
    believed = True
    try:
        SECURE.verify_hello(claimed, token, proven)
    except PeerRefusedError:
        believed = False
    assert believed == (claimed == token_of == proven and right_cluster)


def test_what_a_member_gets_can_be_shipped_and_used() -> None:
    security = CLUSTER.member_security(3, ["worker-3.example", "10.0.0.3"])
    shipped = pickle.loads(pickle.dumps(security))
    assert shipped.member == 3
    assert shipped.token == TOKEN
    assert member_of(shipped.credentials.load().certificate) == 3
    shipped.verify_hello(1, SECURE.token.for_member(1), 1)


def test_the_authoritys_key_is_no_part_of_what_is_shipped() -> None:
    with pytest.raises(LocalProtocolError, match="stays in the process that made it"):
        pickle.dumps(CLUSTER)
    assert SECURE.credentials is not None
    shipped, material = pickle.dumps(SECURE), SECURE.credentials.load()
    assert shipped.count(b"PRIVATE KEY-----") == 2, "the begin and the end of the member's own"
    assert material.key in shipped


def test_nothing_secret_is_shown() -> None:
    assert SECURE.credentials is not None
    SECURE.credentials.load()
    key_line = SECURE.credentials.load().key.decode().splitlines()[1]
    for thing in (TOKEN, SECURE, CLUSTER, CLUSTER.authority, SECURE.credentials):
        for shown in (repr(thing), str(thing), f"{thing}"):
            assert TOKEN.secret not in shown
            assert key_line not in shown


def test_a_cluster_gets_a_token_of_its_own() -> None:
    first, second = ClusterSecurity.create("a"), ClusterSecurity.create("a")
    assert first.token != second.token


def test_an_operators_files_are_those_of_each_member(tmp_path: Path) -> None:
    root = make_issuer()
    files = TlsFiles(tmp_path / "{member}.pem", tmp_path / "{member}.key", tmp_path / "ca.pem")
    for member in (0, 1):
        put_all(files.of_member(member), root.material(member))
    cluster = ClusterSecurity.create("orders", files=files)
    assert cluster.authority is None
    for member in (0, 1):
        credentials = cluster.member_security(member).credentials
        assert credentials is not None
        assert member_of(credentials.load().certificate) == member
    missing = cluster.member_security(2).credentials
    assert isinstance(missing, Credentials)
    with pytest.raises(ConfigurationError, match=r"2\.pem: cannot be read"):
        missing.load()


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing had been logged yet."""
    monkeypatch.setattr(module, "_insecure_logged", type(module._insecure_logged)())


@pytest.mark.usefixtures("new_process")
def test_turning_tls_off_warns(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.warns(InsecureTransportWarning, match="TLS is off") as caught:
        security = Security.insecure(3, TOKEN)
    assert caught[0].filename == __file__, "it points at who turned it off"
    assert security.credentials is None
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("penstock.transport", logging.WARNING)
    assert record.getMessage().startswith("streams of member 3 are not encrypted: ")
    assert TOKEN.secret not in record.getMessage()
    with pytest.warns(InsecureTransportWarning):
        Security.insecure(4, TOKEN)
    assert len(caplog.records) == 1, "logged once per process"


@pytest.mark.usefixtures("new_process")
def test_a_cluster_without_tls_warns_with_its_members(caplog: pytest.LogCaptureFixture) -> None:
    cluster = ClusterSecurity.insecure(token=TOKEN)
    with pytest.warns(InsecureTransportWarning):
        securities = [cluster.member_security(member) for member in range(3)]
    assert len(caplog.records) == 1
    securities[1].verify_hello(2, securities[2].token.for_member(2), None)
    assert pickle.loads(pickle.dumps(securities[1])) == securities[1]


@pytest.mark.usefixtures("new_process")
def test_tls_does_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ClusterSecurity.create("orders").member_security(0)
    assert not caplog.records
