"""Clerks: transactional producers, each of which makes one transfer after the other.

One of them can be told to leave a transfer open for a while, as a producer does that hangs, is
debugged, or waits for somebody else.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from penstock.demo.kafka.transfers import PARTITIONS, transfer
from penstock.demo.kafka.waits import Opened
from penstock.errors import PenstockError
from penstock.threads import supervised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.demo.kafka.transfers import Posting, Topics

CLERKS: Final = 3
PAUSE_SECONDS_MAX: Final = 0.03
"""Between two transfers of a clerk, at most."""
CLOSE_SECONDS_MAX: Final = 10.0
TIMEOUT_MS: Final = 300_000
"""After which the broker would end a transaction by itself: longer than the demo takes."""


class ClerkFailedError(PenstockError):
    """A producer of the demo could not write. Its client's words are quoted."""


@dataclass(slots=True)
class Diary:
    """What a clerk did. Its own thread writes, others read."""

    committed: dict[str, float] = field(default_factory=dict)
    """When the commit of each transfer was acknowledged, by the monotonic clock."""
    first: str | None = None
    """The transfer before all others, whose time does not count."""
    opened: Opened | None = None


class Clerk:
    """From `start` to `close`."""

    def __init__(self, servers: str, name: str, topics: Topics, seed: int) -> None:
        self.name = name
        self.diary = Diary()
        self._topics = topics
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._producer: Any = KafkaProducer(
            bootstrap_servers=servers, transactional_id=name, transaction_timeout_ms=TIMEOUT_MS
        )
        self._is_over, self._holds = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._thread = supervised(f"demo {name}", self._work, fail=self._failed)
        self._has_begun = False
        self._count = 0

    def make_one(self) -> str:
        """One transfer, before `start`. It counts for nothing but that it is there: its name."""
        self._begin()
        name, postings = self._next()
        self._producer.begin_transaction()
        self._post(postings)
        self._producer.commit_transaction()
        self.diary.first = name
        return name

    def start(self) -> None:
        self._thread.start()

    def hold(self) -> None:
        """Its next transfer stays open, until `release`."""
        self._holds.set()

    def release(self) -> None:
        self._holds.clear()

    def check(self) -> None:
        if self._error is not None:
            raise ClerkFailedError(f"{self.name} could not write: {self._error}") from self._error

    def stop(self) -> None:
        """Its transfer is finished first."""
        self._holds.clear()
        self._is_over.set()

    def close(self) -> None:
        self.stop()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS_MAX)
        self._producer.close(timeout=CLOSE_SECONDS_MAX)

    def _failed(self, error: BaseException) -> None:
        self._error = error

    def _work(self) -> None:
        self._begin()
        while not self._is_over.is_set():
            name, postings = self._next()
            self._producer.begin_transaction()
            self._post(postings)
            if self._holds.is_set():
                self._wait_open(name)
            self._producer.commit_transaction()
            self.diary.committed[name] = time.monotonic()
            self._is_over.wait(self._random.uniform(0, PAUSE_SECONDS_MAX))

    def _begin(self) -> None:
        if not self._has_begun:
            self._producer.init_transactions()
            self._has_begun = True

    def _next(self) -> tuple[str, list[Posting]]:
        self._count += 1
        name = f"{self.name}/{self._count}"
        return name, transfer(name, self._topics, self._random)

    def _post(self, postings: Sequence[Posting]) -> None:
        for one in postings:
            self._producer.send(one.topic, one.value, one.key, partition=one.partition)

    def _wait_open(self, name: str) -> None:
        self._producer.flush()
        self.diary.opened = opened = Opened(name, time.monotonic())
        while self._holds.is_set() and not self._is_over.is_set():
            self._is_over.wait(PAUSE_SECONDS_MAX)
        self.diary.opened = Opened(name, opened.began, time.monotonic())


def create_topics(servers: str, topics: Topics) -> None:
    admin: Any = KafkaAdminClient(bootstrap_servers=servers)
    try:
        admin.create_topics(
            [
                NewTopic(name, num_partitions=PARTITIONS, replication_factor=1)
                for name in topics.names
            ],
            wait_for_metadata=True,
        )
    finally:
        admin.close()


class Office:
    """All clerks, until `close`."""

    def __init__(self, servers: str, topics: Topics, seed: int) -> None:
        self.clerks = [
            Clerk(servers, f"clerk-{number + 1}", topics, seed + number) for number in range(CLERKS)
        ]

    @property
    def sleeper(self) -> Clerk:
        """The one that leaves a transfer open."""
        return self.clerks[-1]

    @property
    def committed(self) -> dict[str, float]:
        """When each transfer was, but for the first."""
        return {
            name: moment
            for clerk in self.clerks
            # A copy: the clerk goes on writing.
            for name, moment in clerk.diary.committed.copy().items()
        }

    @property
    def transfers(self) -> set[str]:
        """All that were committed."""
        firsts = {one.diary.first for one in self.clerks if one.diary.first is not None}
        return firsts | self.committed.keys()

    def check(self) -> None:
        for clerk in self.clerks:
            clerk.check()

    def close(self) -> None:
        for clerk in self.clerks:
            clerk.stop()
        for clerk in self.clerks:
            clerk.close()
