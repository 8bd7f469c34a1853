"""How tasks come in: over real sockets, with the token and not without."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from typing import TYPE_CHECKING

import pytest

from penstock.errors import PeerUnavailableError
from penstock.spark.cluster.joining import Door, Joining, Ticket, join
from penstock.spark.cluster.places import Held
from penstock.transport.security import ClusterSecurity

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_SECONDS_MAX = 120.0
QUIET_SECONDS = 0.3
JOINING = Joining("127.0.0.1", "here", 4711, "/queues", {1: Held("/queues/member-1", 5)})


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door("127.0.0.1", ClusterSecurity.create("test"))
    yield made
    made.close()


def ticket(door: Door) -> Ticket:
    return Ticket("127.0.0.1", door.port, door.authority, door.token, "feed", "", "", True)


def test_a_task_comes_in_and_both_ends_speak(door: Door) -> None:
    theirs = join(ticket(door), JOINING)
    came = door.wait(WAIT_SECONDS_MAX)
    assert came is not None
    ours, joining = came
    assert joining == JOINING
    large = b"x" * 3_000_000
    ours.send({"given": 1})
    theirs.send(large)
    assert theirs.recv() == {"given": 1}
    assert ours.recv() == large
    door.close()
    ours.send("still open")
    assert theirs.recv() == "still open"
    ours.cut()
    with pytest.raises((EOFError, OSError)):
        theirs.recv()
    theirs.close()
    ours.close()


def test_who_has_another_token_stays_outside(door: Door) -> None:
    wrong = dataclasses.replace(ticket(door), token=b"0" * 32)
    stranger = dataclasses.replace(JOINING, machine="elsewhere")
    with contextlib.suppress(PeerUnavailableError, OSError):  # it may be shut out as it speaks
        join(wrong, stranger)
    wire = join(ticket(door), JOINING)
    came = door.wait(WAIT_SECONDS_MAX)
    assert came is not None
    assert came[1] == JOINING
    assert door.wait(QUIET_SECONDS) is None
    wire.close()


def test_a_task_tells_the_driver_by_its_certificate(door: Door) -> None:
    other = ClusterSecurity.create("other").authority
    assert other is not None
    with pytest.raises(PeerUnavailableError, match="cannot be reached"):
        join(dataclasses.replace(ticket(door), authority=other.certificate), JOINING)
    assert door.wait(QUIET_SECONDS) is None


def test_who_speaks_no_tls_is_no_task_and_others_come_in_meanwhile(door: Door) -> None:
    with socket.create_connection(("127.0.0.1", door.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        wire = join(ticket(door), JOINING)
        assert door.wait(WAIT_SECONDS_MAX) is not None
    wire.close()


def test_nobody_comes_in_after_the_end(door: Door) -> None:
    door.close()
    with pytest.raises(PeerUnavailableError, match="cannot be reached"):
        join(ticket(door), JOINING)


def test_secrets_are_not_shown(door: Door) -> None:
    assert str(door.token) not in repr(ticket(door))
