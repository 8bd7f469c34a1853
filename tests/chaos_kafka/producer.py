"""A program that moves money in transactions over two topics until a file tells it to stop, or it
is killed.

It survives its brokers. A commit whose outcome is unknown is asked for again, which Kafka allows; a
producer that fails is given up for another one of its id, at which the coordinator aborts what was
left open. No transfer is tried twice: each has a number of its own, and which of them were
committed is read from the topics afterwards.

It commits, or aborts, only what brokers have confirmed row by row, each at an offset of its own.
librdkafka (2.16) may take a row whose request failed for not written, and give the next one its
sequence number. If it was written, the broker takes the next one for its repetition, and answers
with the offset of the first: the next one is nowhere, and would be committed all the same.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.demo.kafka.transfers import transfer
from tests.chaos_kafka.promises import PROMISES, Place, PromiseWriter
from tests.chaos_kafka.world import TOPICS

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

PACE_SECONDS: Final = 0.05
ASK_SECONDS: Final = 5.0
"""One try; there are as many as it takes."""
ABORTED_ONE_IN: Final = 8
TIMEOUT_MS: Final = 10_000
"""A transaction that lasts longer is aborted by its coordinator, as some are when brokers pause. So
long, too, librdkafka tries to deliver a row."""


class FencedError(Exception):
    """This producer is given up."""


class Confirmations:
    """What brokers answer to the rows of one transfer."""

    def __init__(self, last: dict[tuple[str, int], int]) -> None:
        """`last` is the offset of this clerk's last row in each partition, and kept up to date."""
        self._last = last
        self.places: list[Place] = []
        self.refusal = ""
        """Why this transfer must not be committed."""

    def add(self, error: KafkaError | None, message: Message) -> None:
        topic, partition = message.topic() or "", message.partition() or 0
        offset = -1 if message.offset() is None else int(message.offset() or 0)
        before = self._last.get((topic, partition), -1)
        if error is not None:
            self.refusal = f"{topic}-{partition}: {error}"
        elif offset <= before:
            self.refusal = f"{topic}-{partition}: a row at {offset}, after one at {before}"
        else:
            self._last[topic, partition] = offset
            self.places.append((topic, partition, offset))


class Clerk:
    def __init__(self, servers: str, name: str, seed: str, promises: PromiseWriter) -> None:
        self._name, self._servers = name, servers
        self._transfers = f"{name}-{os.getpid()}"
        self._random = random.Random(seed)
        self._count = 0
        self._promises = promises
        self._last: dict[tuple[str, int], int] = {}

    def work(self, is_over: Callable[[], bool]) -> None:
        """Makes transfers, each by the producer of this name, until it is over."""
        producer: Producer | None = None
        while not is_over():
            try:
                producer = producer or self._new_producer()
                self._one(producer)
            except FencedError as error:
                say(f"{self._name} is made anew: {error}")
                producer = None
            time.sleep(PACE_SECONDS)  # the pace of the writing, not a wait for anything

    def _new_producer(self) -> Producer:
        settings = {
            "bootstrap.servers": self._servers,
            "transactional.id": self._name,
            "transaction.timeout.ms": TIMEOUT_MS,
            "message.timeout.ms": TIMEOUT_MS,
            "linger.ms": 0,
            "reconnect.backoff.max.ms": 1_000,
            "socket.timeout.ms": 5_000,
            "request.timeout.ms": 5_000,
        }
        producer = Producer(settings)
        _insist(producer.init_transactions)
        return producer

    def _one(self, producer: Producer) -> None:
        self._count += 1
        name = f"{self._transfers}-{self._count}"
        postings = transfer(name, TOPICS, self._random)
        confirmations = Confirmations(self._last)
        try:
            producer.begin_transaction()
            for posting in postings:
                producer.produce(
                    posting.topic,
                    posting.value,
                    posting.key,
                    partition=posting.partition,
                    on_delivery=confirmations.add,
                )
            while producer.flush(ASK_SECONDS):  # until TIMEOUT_MS at most
                pass
            if confirmations.refusal or len(confirmations.places) != len(postings):
                raise FencedError(f"{name} is not written whole: {confirmations.refusal}")
            self._promises.stored(name, confirmations.places)
            if self._random.randrange(ABORTED_ONE_IN):
                _insist(producer.commit_transaction)
                self._promises.decided(name, "committed")
            else:
                _insist(producer.abort_transaction)
                self._promises.decided(name, "aborted")
        except KafkaException as error:
            raise FencedError(str(error)) from error


def _insist(ask: Callable[[float], None]) -> None:
    """Until the cluster has decided."""
    while True:
        try:
            return ask(ASK_SECONDS)
        except KafkaException as error:
            known = _of(error)
            if known.fatal() or known.txn_requires_abort() or not known.retriable():
                raise


def _of(error: KafkaException) -> KafkaError:
    known = error.args[0]
    if not isinstance(known, KafkaError):
        raise TypeError(f"librdkafka says {error!r}") from error
    return known


def say(words: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {words}\n")
    sys.stderr.flush()


def main(folder: Path, servers: str, name: str, seed: str) -> None:
    with (folder / PROMISES / f"{name}-{os.getpid()}").open("w", buffering=1) as file:
        Clerk(servers, name, seed, PromiseWriter(file)).work((folder / "stop").exists)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:5])
