"""Closed by default: who cannot prove to be a member gets nothing in, and learns why it failed."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ConfigurationError, PeerUnavailableError, RemoteProtocolError
from penstock.transport import Barrier, Close, Origin, Timing
from penstock.transport.certificates import member_name
from penstock.transport.discovery import ADDRESS_KEY
from penstock.transport.security import (
    ClusterSecurity,
    Credentials,
    InsecureTransportWarning,
    Security,
    TlsFiles,
    Token,
)
from tests.conformance.batches import number_of, numbered, numbers
from tests.conformance.bystander import Bystander
from tests.conformance.fabric import (
    HASTY,
    OTHER,
    RECEIVING,
    SENDING,
    cluster_of,
    over_bytes,
    over_tls,
    security_of,
    stranger_of,
)
from tests.conformance.raw import bytes_sender, connect, hello_of, raw_listener, raw_sender
from tests.conformance.waiting import (
    WAIT_SECONDS_MAX,
    Background,
    eventually,
    never,
    open_sockets,
    take,
    waiting_frames,
)

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.transport.certificates import Material
    from tests.conformance.fabric import Fabric

pytestmark = pytest.mark.slow

SHORT_WAIT = HASTY
"""Where TLS does not let a peer say why, the sender waits for an answer; not for long."""
IMPATIENT = Timing(connect_seconds_max=1, heartbeat_seconds=10, silence_seconds_max=60)
"""With strangers only."""


def material_of(security: Security) -> Material:
    assert security.credentials is not None
    return security.credentials.load()


def refused(fabric: Fabric, security: Security) -> str:
    """What a sender with this security is told. Nothing of it gets in, and others are not hurt."""
    receiver = fabric.receiver()
    bystander = Bystander(fabric, receiver)
    sender = fabric.sender(security=security, timing=SHORT_WAIT)
    with pytest.raises((PeerUnavailableError, RemoteProtocolError)) as failure:
        sender.send(RECEIVING, numbered(1))
    bystander.check()
    never(lambda: waiting_frames(receiver), "something of a stranger got in")
    assert sender.credit_bytes(RECEIVING) == 0
    return str(failure.value)


def test_a_wrong_token_is_refused(fabric: Fabric) -> None:
    own = fabric.security(SENDING)
    reason = refused(fabric, Security(SENDING, Token.generate(), own.credentials))
    assert f"a peer as member {SENDING} was refused" in reason
    assert "its token is not the one this cluster has" in reason


def test_a_token_of_another_member_is_refused(fabric: Fabric) -> None:
    receiver = fabric.receiver()
    peer = raw_sender(fabric, SENDING)
    hello = hello_of(fabric, OTHER)
    peer.say(type(hello)(SENDING, 0, hello.token))
    close = peer.hear_close()
    assert close.fault
    assert "its token is not the one" in close.reason
    assert receiver.drain() == []


@pytest.mark.parametrize("token", [b"", b"x", bytes(32), bytes(64)])
def test_a_token_of_any_other_kind_is_refused(fabric: Fabric, token: bytes) -> None:
    receiver = fabric.receiver()
    peer = raw_sender(fabric)
    hello = hello_of(fabric)
    peer.say(type(hello)(SENDING, 0, token))
    assert "its token is not the one" in peer.hear_close().reason
    assert receiver.drain() == []


def test_frames_are_of_whom_the_proof_names(fabric: Fabric) -> None:
    """The certificate, and within a process the security that dials, is of member 3: it has the
    cluster's token, so it can make what any member's Hello would carry."""
    if not fabric.kind.tls and fabric.kind.carrier != "local":
        pytest.skip("without TLS the token is the proof, and all members share it")
    receiver = fabric.receiver()
    peer = raw_sender(fabric, OTHER)
    peer.say(hello_of(fabric, SENDING))
    close = peer.hear_close()
    assert close.fault
    assert f"its certificate is that of member {OTHER}" in close.reason
    assert receiver.drain() == []
    honest = raw_sender(fabric, OTHER)
    honest.greet(hello_of(fabric, OTHER, lane=4))
    honest.say(numbered(1))
    assert take(receiver)[0].origin == Origin(OTHER, 4)


@over_tls
def test_a_certificate_of_another_authority_is_refused(fabric: Fabric) -> None:
    reason = refused(fabric, security_of(stranger_of(fabric.kind), SENDING))
    assert "certificate" in reason.lower()


@over_tls
def test_a_client_that_takes_any_server_but_shows_another_certificate_is_refused(
    fabric: Fabric,
) -> None:
    """As above, for the receiver's side alone: the client above refused the receiver first."""
    receiver = fabric.receiver()
    bystander = Bystander(fabric, receiver)
    credentials = security_of(stranger_of(fabric.kind), SENDING).credentials
    assert credentials is not None
    try_to_get_in(fabric, credentials.contexts().client)
    bystander.check()
    never(lambda: waiting_frames(receiver), "a stranger got in")


@over_tls
def test_no_certificate_is_refused(fabric: Fabric) -> None:
    receiver = fabric.receiver()
    bystander = Bystander(fabric, receiver)
    try_to_get_in(fabric, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    bystander.check()
    never(lambda: waiting_frames(receiver), "a stranger got in")


def try_to_get_in(fabric: Fabric, context: ssl.SSLContext) -> None:
    """Says Hello and data under a context that does not care who the receiver is. It must end
    without an answer."""
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if fabric.kind.carrier == "grpc":
        context.set_alpn_protocols(["h2"])
    plain = connect(fabric, fabric.address())
    words = bytes_sender(fabric)
    with suppress(OSError):
        secure = context.wrap_socket(plain, server_hostname=member_name(RECEIVING))
        fabric.at_end(secure.close)
        secure.settimeout(WAIT_SECONDS_MAX)
        secure.sendall(words.encode(hello_of(fabric)) + words.encode(numbered(1)))
        assert secure.recv(1) == b""  # or raises, which is as good
    words.cut()


@over_tls
def test_a_plain_client_gets_nowhere_with_a_receiver_under_tls(fabric: Fabric) -> None:
    reason = refused(fabric, security_of(ClusterSecurity.insecure(token=token_of(fabric)), SENDING))
    assert reason


@over_tls
def test_a_client_under_tls_gets_nowhere_with_a_plain_receiver(fabric: Fabric) -> None:
    plain = security_of(ClusterSecurity.insecure(token=token_of(fabric)), RECEIVING)
    receiver = fabric.receiver(security=plain, timing=HASTY)
    sender = fabric.sender(timing=HASTY)
    with pytest.raises(PeerUnavailableError, match=f"member {RECEIVING}"):
        sender.send(RECEIVING, numbered(1))
    never(lambda: waiting_frames(receiver), "something got in without TLS")


def token_of(fabric: Fabric) -> Token:
    return cluster_of(fabric.kind).token


def test_the_member_that_answers_must_be_the_one_looked_up(fabric: Fabric) -> None:
    """Its address was taken over by another member, as ports are."""
    other = fabric.receiver(OTHER)
    fabric.publish(RECEIVING, other.address)
    sender = fabric.sender(timing=SHORT_WAIT)
    with pytest.raises((PeerUnavailableError, RemoteProtocolError), match=r"member|certificate"):
        sender.send(RECEIVING, numbered(1))
    receiver = fabric.receiver()
    sender.send(RECEIVING, numbered(2))
    sender.send(OTHER, numbered(3))
    assert numbers(take(receiver)) == [2]
    taken = eventually(lambda: numbers(other.drain()), "that the other member is served")
    assert taken == [3]


@over_bytes
@pytest.mark.parametrize("lie", ["token", "member", "version"])
def test_a_receiver_that_cannot_prove_itself_gets_no_data(fabric: Fabric, lie: str) -> None:
    listener = raw_listener(fabric)
    sender = fabric.sender()
    sending = Background(lambda: sender.send(RECEIVING, numbered(1)), "sending")
    peer = listener.accept()
    assert peer.hear() is not None
    hello: Any = hello_of(fabric, RECEIVING, window_bytes=10**6)
    if lie == "token":
        peer.say(type(hello)(RECEIVING, 0, bytes(32), 10**6))
    elif lie == "member":
        peer.say(hello_of(fabric, OTHER, window_bytes=10**6))
    else:
        peer.say(type(hello)(RECEIVING, 0, hello.token, 10**6, 9))
    with pytest.raises((PeerUnavailableError, RemoteProtocolError)) as failure:
        sending.result()
    expected = {"token": "token", "member": f"member {OTHER}", "version": "version 9"}
    assert expected[lie] in str(failure.value)
    while (heard := peer.hear()) is not None:
        assert isinstance(heard[0], Close), heard


@over_tls
def test_a_certificate_that_cannot_be_used_is_said_at_the_bind(fabric: Fabric) -> None:
    material = material_of(fabric.security(OTHER))  # of another member
    sockets = open_sockets()
    bad = Security(RECEIVING, token_of(fabric), Credentials(material, RECEIVING))
    with pytest.raises(ConfigurationError, match=f"member {RECEIVING}|member-{RECEIVING}"):
        fabric.receiver(security=bad)
    assert fabric.keyvalue.read(RECEIVING, ADDRESS_KEY) is None
    assert open_sockets() == sockets


@over_tls
def test_a_certificate_that_cannot_be_used_is_said_by_the_first_send(fabric: Fabric) -> None:
    receiver = fabric.receiver()
    material = material_of(fabric.security(OTHER))
    bad = Security(SENDING, token_of(fabric), Credentials(material, SENDING))
    with pytest.raises(ConfigurationError):
        fabric.sender(security=bad).send(RECEIVING, numbered(1))
    assert receiver.drain() == []


def write(files: TlsFiles, material: Material) -> None:
    """Replaces the files as an operator would, one by one."""
    parts = (material.certificate, material.key, material.authority)
    for path, data in zip((files.certificate, files.key, files.authority), parts, strict=True):
        beside = path.with_suffix(".new")
        beside.write_bytes(data)
        beside.replace(path)


@over_tls
def test_new_certificate_files_are_used_without_a_restart(fabric: Fabric, tmp_path: Path) -> None:
    """The whole cluster moves to another authority. Old connections go on, new ones use it."""
    old, new = cluster_of(fabric.kind), stranger_of(fabric.kind)
    securities = {}
    files = {}
    for member in (SENDING, RECEIVING):
        folder = tmp_path / str(member)
        folder.mkdir()
        files[member] = TlsFiles(folder / "certificate", folder / "key", folder / "authority")
        write(files[member], material_of(security_of(old, member)))
        credentials = Credentials(files[member], member)
        securities[member] = Security(member, old.token, credentials)
    receiver = fabric.receiver(security=securities[RECEIVING])
    sender = fabric.sender(security=securities[SENDING])
    sender.send(RECEIVING, numbered(1))
    for member in (SENDING, RECEIVING):
        write(files[member], material_of(security_of(new, member)))
    sender.send(RECEIVING, numbered(2))
    first, second = take(receiver, 2)
    assert first.connection == second.connection
    # A connection of the new files is let in, one of the old files no longer.
    lane = fabric.sender(lane=1, security=securities[SENDING])
    lane.send(RECEIVING, numbered(3))
    assert numbers(take(receiver)) == [3]
    late = fabric.sender(lane=2, security=security_of(old, SENDING), timing=SHORT_WAIT)
    with pytest.raises((PeerUnavailableError, RemoteProtocolError)):
        late.send(RECEIVING, numbered(4))
    sender.send(RECEIVING, numbered(5))
    (last,) = take(receiver)
    assert (number_of(last.frame), last.connection) == (5, first.connection)


def test_turning_tls_off_warns() -> None:
    with pytest.warns(InsecureTransportWarning, match="TLS is off"):
        ClusterSecurity.insecure().member_security(1)


@over_bytes
def test_strangers_that_say_nothing_are_shown_the_door(fabric: Fabric) -> None:
    receiver = fabric.receiver(timing=IMPATIENT)
    strangers = [connect(fabric, receiver.address) for _ in range(5)]
    for stranger in strangers:
        with suppress(ConnectionError):
            while stranger.recv(1000):  # it may say a word or two first
                pass
    sender = fabric.sender()
    sender.send(RECEIVING, Barrier(1, 1))
    assert [each.frame for each in take(receiver)] == [Barrier(1, 1)]


@over_bytes
def test_a_crowd_of_strangers_leaves_in_the_end(fabric: Fabric) -> None:
    """More of them than are let wait; when they are gone, members get in as ever."""
    receiver = fabric.receiver(timing=IMPATIENT)
    early = fabric.sender(OTHER)
    early.send(RECEIVING, numbered(1))
    for _ in range(100):
        connect(fabric, receiver.address)
    early.send(RECEIVING, numbered(2))  # those who are in do not notice
    assert numbers(take(receiver, 2)) == [1, 2]
    late = fabric.sender()

    def get_in() -> bool:
        with suppress(PeerUnavailableError):
            late.send(RECEIVING, numbered(3))
            return True
        return False

    eventually(get_in, "that a member gets in after the strangers")
    frames = [each.frame for each in take(receiver)]
    assert not isinstance(frames[0], Close)
