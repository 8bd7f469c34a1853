"""TLS over real sockets: who is let in and who is not, and where the key goes meanwhile."""

from __future__ import annotations

import pickle
import socket
import ssl
import stat
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from penstock.errors import ConfigurationError, RemoteProtocolError
from penstock.transport import tls
from penstock.transport.certificates import Authority, BadCertificateError, Material, check_material
from penstock.transport.tls import (
    Credentials,
    PeerRefusedError,
    client_context,
    peer_member,
    server_context,
)
from tests.unit.transport.made_certificates import DAY, NOW, make_issuer, serial_of
from tests.unit.transport.made_connections import (
    WAIT_SECONDS,
    raw_context,
    read_something,
    shake,
    talk,
)

if TYPE_CHECKING:
    from pathlib import Path

AUTHORITY = Authority.create("orders")
STRANGER = Authority.create("orders")
"""Of another cluster with the same name."""
ROOT = make_issuer()
LONG_AGO = datetime(2010, 1, 1, tzinfo=UTC)


def credentials_of(member: int) -> Credentials:
    return Credentials(AUTHORITY.issue(member), member)


SERVER = credentials_of(1)


def test_members_shake_hands_and_prove_who_they_are() -> None:
    with shake(server_context(SERVER), client_context(credentials_of(2))) as pair:
        talk(pair)
        client, server = pair.ends
        assert (peer_member(client), peer_member(server)) == (1, 2)
        assert client.version() == server.version() == "TLSv1.3"


def test_no_session_is_kept_to_skip_the_certificate() -> None:
    with shake(server_context(SERVER), client_context(credentials_of(2))) as pair:
        talk(pair)
        client, _ = pair.ends
        assert client.session is None or not client.session.has_ticket


def test_only_the_clusters_authority_is_trusted() -> None:
    for context in (server_context(SERVER), client_context(SERVER)):
        (trusted,) = context.get_ca_certs(binary_form=True)
        assert serial_of(trusted) == serial_of(AUTHORITY.certificate)
        assert context.verify_mode is ssl.CERT_REQUIRED
    assert client_context(SERVER).check_hostname


@pytest.mark.parametrize(
    ("material", "reason"),
    [
        (None, "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        (STRANGER.issue(2), "CERTIFICATE_VERIFY_FAILED"),
        (ROOT.material(2), "CERTIFICATE_VERIFY_FAILED"),
        (Authority.create("orders", now=LONG_AGO).issue(2, now=LONG_AGO), "VERIFY_FAILED"),
    ],
    ids=["no certificate", "same name, other authority", "other authority", "both long expired"],
)
def test_a_server_refuses_a_stranger(
    tmp_path: Path, material: Material | None, reason: str
) -> None:
    client = raw_context(ssl.PROTOCOL_TLS_CLIENT, tmp_path, material, AUTHORITY.certificate)
    with shake(server_context(SERVER), client) as pair:
        assert isinstance(pair.server, ssl.SSLError)
        assert reason in str(pair.server)
        assert isinstance(pair.client, ssl.SSLSocket), "TLS 1.3 tells it at its first read"
        with pytest.raises(OSError, match=r"alert|reset|EOF|closed|[Bb]roken"):
            read_something(pair.client)


@pytest.mark.parametrize(
    ("material", "reason"),
    [
        (ROOT.material(2, begin=NOW - 2 * DAY, end=NOW - DAY), "certificate has expired"),
        (ROOT.material(2, begin=NOW + DAY / 2, end=NOW + DAY), "certificate is not yet valid"),
        (ROOT.material(2, usages=[ExtendedKeyUsageOID.SERVER_AUTH]), "unsuitable certificate"),
    ],
    ids=["expired", "not yet valid", "not for clients"],
)
def test_a_server_refuses_a_certificate_that_its_authority_signed(
    tmp_path: Path, material: Material, reason: str
) -> None:
    server = server_context(Credentials(ROOT.material(1), 1))
    client = raw_context(ssl.PROTOCOL_TLS_CLIENT, tmp_path, material, ROOT.pem)
    with shake(server, client) as pair:
        assert isinstance(pair.server, ssl.SSLCertVerificationError)
        assert reason in pair.server.verify_message
        assert isinstance(pair.client, ssl.SSLSocket)
        with pytest.raises(OSError, match=r"alert|reset|EOF|closed|[Bb]roken"):
            read_something(pair.client)


def test_a_server_refuses_older_tls(tmp_path: Path) -> None:
    client = raw_context(
        ssl.PROTOCOL_TLS_CLIENT, tmp_path, AUTHORITY.issue(2), AUTHORITY.certificate
    )
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    with shake(server_context(SERVER), client) as pair:
        assert "UNSUPPORTED_PROTOCOL" in str(pair.server)
        assert isinstance(pair.client, OSError)


@pytest.mark.parametrize(
    ("material", "reason"),
    [
        (ROOT.material(5), "Hostname mismatch"),
        (ROOT.material(1, begin=NOW - 2 * DAY, end=NOW - DAY), "certificate has expired"),
        (ROOT.material(1, usages=[ExtendedKeyUsageOID.CLIENT_AUTH]), "unsuitable certificate"),
        (ROOT.material(1, names=None), "Hostname mismatch"),
        (ROOT.material(1, names=["*.penstock"]), "Hostname mismatch"),
        (make_issuer().material(1), "signature failure"),
        (STRANGER.issue(1), "unable to get local issuer"),
    ],
    ids=[
        "member 5",
        "expired",
        "not for servers",
        "old style name",
        "any name",
        "forged",
        "stranger",
    ],
)
def test_a_client_refuses_a_server_that_is_not_the_member(
    tmp_path: Path, material: Material, reason: str
) -> None:
    server = raw_context(ssl.PROTOCOL_TLS_SERVER, tmp_path, material, ROOT.pem)
    with shake(server, client_context(Credentials(ROOT.material(2), 2))) as pair:
        assert isinstance(pair.client, ssl.SSLCertVerificationError)
        assert reason in str(pair.client)
        assert isinstance(pair.server, OSError)


def test_a_client_must_say_whom_it_expects() -> None:
    plain, other = socket.socketpair()
    context = client_context(SERVER)
    with plain, other, pytest.raises(ValueError, match="check_hostname requires server_hostname"):
        context.wrap_socket(plain, do_handshake_on_connect=False)


def test_a_certificate_of_several_members_proves_none(tmp_path: Path) -> None:
    several = ROOT.material(1, names=["member-1.penstock", "member-2.penstock"])
    server = raw_context(ssl.PROTOCOL_TLS_SERVER, tmp_path, several, ROOT.pem)
    with shake(server, client_context(Credentials(ROOT.material(3), 3))) as pair:
        client, server_end = pair.ends
        with pytest.raises(PeerRefusedError, match="its certificate names several members"):
            peer_member(client)
        with pytest.raises(PeerRefusedError, match="it showed no certificate"):
            peer_member(server_end)  # this raw server did not ask for one


def test_chains_of_own_authorities_are_spoken() -> None:
    """One member trusts the root, the other only the cluster's intermediate authority."""
    middle = make_issuer("middle", ROOT)
    by_root = Credentials(middle.material(1, authority=ROOT.pem, chain=middle.pem), 1)
    by_middle = Credentials(middle.material(2), 2)
    for server, client, member in ((by_root, by_middle, 1), (by_middle, by_root, 2)):
        with shake(server_context(server), client_context(client), member) as pair:
            talk(pair)


def test_trust_in_the_intermediate_authority_is_not_trust_in_the_root(tmp_path: Path) -> None:
    middle = make_issuer("middle", ROOT)
    client = raw_context(ssl.PROTOCOL_TLS_CLIENT, tmp_path, ROOT.material(2), middle.pem + ROOT.pem)
    with shake(server_context(Credentials(middle.material(1), 1)), client) as pair:
        assert isinstance(pair.server, ssl.SSLCertVerificationError)


def test_what_only_tls_itself_finds_is_found_at_the_first_load() -> None:
    """The root forbids authorities below it. Signatures, names and dates are fine."""
    root = make_issuer("short", path_length=0)
    middle = make_issuer("middle", root)
    material = middle.material(3, authority=root.pem, chain=middle.pem)
    check_material(material, 3)
    with pytest.raises(BadCertificateError, match=r"refused by TLS \(path length constraint"):
        Credentials(material, 3).load()


def test_threads_wait_for_the_first_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, second_entered, leave = threading.Event(), threading.Event(), threading.Event()

    def slow_check(*given: Any, **named: Any) -> Any:
        (second_entered if entered.is_set() else entered).set()
        assert leave.wait(WAIT_SECONDS)
        return check_material(*given, **named)

    monkeypatch.setattr(tls, "check_material", slow_check)
    credentials = credentials_of(2)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(credentials.contexts)
        assert entered.wait(WAIT_SECONDS)
        second = threads.submit(credentials.contexts)
        entered_twice = second_entered.wait(0.2)
        leave.set()
    assert not entered_twice
    assert first.result() is second.result()


def test_made_credentials_pickle_with_their_material() -> None:
    made = credentials_of(2)
    made.load()
    with shake(server_context(SERVER), client_context(pickle.loads(pickle.dumps(made)))) as pair:
        talk(pair)


def test_credentials_show_no_key() -> None:
    credentials = credentials_of(2)
    material = credentials.load()
    secret = material.key.decode().splitlines()[1]
    shown = [repr(credentials), str(credentials), repr(credentials.contexts())]
    assert not [text for text in shown if secret in text]
    assert repr(credentials) == "Credentials(Material(certificate, key, authority), member=2)"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("fails", [False, True])
def test_the_key_is_on_disk_for_a_moment_locked_and_private(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    material = AUTHORITY.issue(2)
    seen: list[tuple[int, int, bytes]] = []
    load = ssl.SSLContext.load_cert_chain

    def spy(context: ssl.SSLContext, path: Path, **options: Any) -> None:
        modes = (stat.S_IMODE(path.parent.stat().st_mode), stat.S_IMODE(path.stat().st_mode))
        seen.append((*modes, path.read_bytes()))
        assert temporary in path.parents
        if fails:
            raise ssl.SSLError("no")
        load(context, path, **options)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    credentials = Credentials(material, 2)
    if fails:
        with pytest.raises(BadCertificateError, match=r"is refused by TLS \(.*no"):
            credentials.load()
    else:
        credentials.load()
    assert list(temporary.iterdir()) == []
    assert seen
    for folder_mode, file_mode, data in seen:
        assert (folder_mode, file_mode) == (0o700, 0o600)
        assert b"BEGIN ENCRYPTED PRIVATE KEY" in data
        assert b"BEGIN PRIVATE KEY" not in data


def test_a_temporary_folder_that_cannot_be_written_is_named(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "missing"))
    with pytest.raises(ConfigurationError, match="set TMPDIR to a folder that can be written"):
        credentials_of(2).load()


def test_a_refusal_pickles_and_is_the_others_fault() -> None:
    error = PeerRefusedError(3, "its token is wrong")
    assert isinstance(error, RemoteProtocolError)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "a peer as member 3 was refused: its token is wrong"
    assert (again.claimed_member, again.reason) == (3, "its token is wrong")
