"""A program that moves money in transactions over two topics until a file tells it to stop, or it
is killed.

It survives its brokers. A commit whose outcome is unknown is asked for again, which Kafka allows; a
producer that fails is given up for another one of its id, at which the coordinator aborts what was
left open. No transfer is tried twice: each has a number of its own, and which of them were
committed is read from the topics afterwards.

It is given up, too, instead of aborting while rows are in flight: librdkafka (2.16) takes such a
row for not written, and gives the next one its sequence number. If it was written, the broker takes
the next one for its repetition, and a committed transaction lacks a row.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.demo.kafka.transfers import transfer
from tests.chaos_kafka.world import PROMISES, TOPICS

if TYPE_CHECKING:
    from collections.abc import Callable

PACE_SECONDS: Final = 0.05
ASK_SECONDS: Final = 5.0
"""One try; there are as many as it takes."""
ABORTED_ONE_IN: Final = 8
TIMEOUT_MS: Final = 10_000
"""A transaction that lasts longer is aborted by its coordinator, as some are when brokers pause."""


class FencedError(Exception):
    """This producer is given up."""


class Clerk:
    def __init__(self, servers: str, name: str, seed: str, promises: TextIO) -> None:
        self._name, self._servers = name, servers
        self._transfers = f"{name}-{os.getpid()}"
        self._random = random.Random(seed)
        self._count = 0
        self._promises = promises

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
        try:
            producer.begin_transaction()
            for posting in postings:
                producer.produce(
                    posting.topic, posting.value, posting.key, partition=posting.partition
                )
            if self._random.randrange(ABORTED_ONE_IN):
                _insist(producer.commit_transaction)
                self._promises.write(f"committed {name}\n")
                return
            if producer.flush(ASK_SECONDS):
                raise FencedError("rows are in flight")
            _insist(producer.abort_transaction)
            self._promises.write(f"aborted {name}\n")
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
    with (folder / PROMISES / f"{name}-{os.getpid()}").open("w", buffering=1) as promises:
        Clerk(servers, name, seed, promises).work((folder / "stop").exists)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:5])
