"""A queue over the network is the queue on disk: the same rows in the same order, or refused."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from penstock.errors import LocalProtocolError, PeerUnavailableError
from penstock.shuffle.flights import reader_material
from penstock.shuffle.queue.log import QueueLog
from penstock.shuffle.queue.reader import QueueReader
from penstock.shuffle.serving import (
    MACHINE_VARIABLE,
    QueueServer,
    RemoteQueue,
    Served,
    open_queue,
    this_machine,
)
from penstock.transport.security import ClusterSecurity
from tests.unit.shuffle.queue.queues import Row, append, frontier, producer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "a read token of one session"
MEMBER = 7
FIRST = (0, "orders/000", producer(1))
OTHER = (1, "payments/000", producer(2))


class Queue:
    """One of two bindings and two schema versions, served by a member."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with QueueLog.open(folder, 0) as log:
            append(log, [Row(*FIRST, clock, clock) for clock in range(1, 11)])
            append(
                log,
                [
                    *(Row(*FIRST, clock, clock, version=2) for clock in range(11, 21)),
                    *(Row(*OTHER, clock, clock) for clock in range(1, 6)),
                ],
            )
            self.lsn = log.sync()
            self.generation = log.generation
        self.security = ClusterSecurity.create("test")
        self.server = QueueServer(folder, self.security.member_security(MEMBER), "127.0.0.1", TOKEN)
        material = reader_material(self.security)
        self.served = Served(MEMBER, this_machine(), self.server.location, material, TOKEN)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    made = Queue(tmp_path)
    yield made
    made.server.close()


STRETCHES = [
    ({}, {FIRST: 20, OTHER: 5}),
    ({FIRST: 4}, {FIRST: 15}),
    ({FIRST: 20}, {FIRST: 20}),
    ({FIRST: 12, OTHER: 2}, {FIRST: 13, OTHER: 3}),
]


@pytest.mark.parametrize(("start", "end"), STRETCHES)
def test_the_same_comes_as_from_the_disk(
    queue: Queue, start: dict[tuple[int, str, int], int], end: dict[tuple[int, str, int], int]
) -> None:
    span = frontier(start), frontier(end)
    remote = RemoteQueue(queue.served, queue.generation)
    local = QueueReader(queue.folder)
    for _ in range(2):  # the second time by a reader that remembers
        found = list(remote.read(*span, queue.lsn))
        wanted = list(local.read(*span, queue.lsn))
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert (one.lsn, one.stage) == (other.lsn, other.stage)
            assert one.batch == other.batch
            assert one.batch.schema == other.batch.schema
            assert one.places.tolist() == other.places.tolist()
            assert one.names.items() <= other.names.items()
            assert set(one.batch.column("_read").to_pylist()) == one.names.keys()
        assert remote.measure(*span, queue.lsn) == local.measure(*span, queue.lsn)
    remote.close()


def test_another_queue_in_the_folder_is_not_read(queue: Queue) -> None:
    remote = RemoteQueue(queue.served, queue.generation + 1)
    with pytest.raises(PeerUnavailableError, match="begun anew"):
        list(remote.read(frontier({}), frontier({FIRST: 20}), queue.lsn))
    with pytest.raises(PeerUnavailableError, match="begun anew"):
        remote.measure(frontier({}), frontier({FIRST: 20}), queue.lsn)
    with pytest.raises(LocalProtocolError, match="begun anew"):
        open_queue(queue.folder, queue.generation + 1)


def test_who_has_no_token_reads_nothing(queue: Queue) -> None:
    stranger = RemoteQueue(dataclasses.replace(queue.served, token="x" * len(TOKEN)), 1)
    with pytest.raises(PeerUnavailableError, match="read token"):
        list(stranger.read(frontier({}), frontier({FIRST: 20}), queue.lsn))
    with pytest.raises(PeerUnavailableError, match="read token"):
        stranger.measure(frontier({}), frontier({FIRST: 20}), queue.lsn)


def test_a_reader_does_not_take_another_server_for_the_member(queue: Queue) -> None:
    """Neither one with certificates of its own, nor another member of the session."""
    ours = queue.served.material
    other = reader_material(ClusterSecurity.create("other"))
    for wrong in (
        dataclasses.replace(queue.served, material=other),
        dataclasses.replace(
            queue.served, material=dataclasses.replace(ours, authority=other.authority)
        ),
        dataclasses.replace(queue.served, member=MEMBER + 1),
    ):
        with pytest.raises(PeerUnavailableError):
            RemoteQueue(wrong, queue.generation).measure(frontier({}), frontier({}), queue.lsn)


def test_secrets_are_not_shown(queue: Queue) -> None:
    assert TOKEN not in repr(queue.served)


def test_a_machine_has_the_name_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    own = this_machine()
    assert own == this_machine()
    monkeypatch.setenv(MACHINE_VARIABLE, "rack-4")
    assert this_machine() == "rack-4"
