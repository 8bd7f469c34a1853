"""A topic to read: JSON documents of 128 bytes, in eight partitions, packed with lz4.

{"id":1000000017,"account":8113,"amount":17.25,"kind":"transfer","note":"9c5e…"}
"""

from __future__ import annotations

import random
from typing import Final

from confluent_kafka import Producer

DDL: Final = "id BIGINT, account BIGINT, amount DOUBLE, kind STRING, note STRING"
DOCUMENT_BYTES: Final = 128
ACCOUNTS: Final = 9_000
FIRST_ACCOUNT: Final = 1_000
FIRST_ID: Final = 1_000_000_000
"""Every id has as many digits as the first."""
PRODUCER: Final = {
    "compression.type": "lz4",
    "linger.ms": 50,
    "batch.num.messages": 20_000,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 500_000,
}
FLUSH_SECONDS_MAX: Final = 120.0
ROOM_SECONDS: Final = 1.0
"""So long a full buffer is given to send something."""
_NOISE: Final = random.Random(15).randbytes(2_048).hex().encode()
"""What notes are cut from, so that lz4 does not find one note in all documents."""


def fill(servers: str, topic: str, documents: int, partitions: int, *, first: int = 0) -> None:
    """Produces the documents numbered from `first` on, without transactions. Keys are accounts."""
    producer = Producer({**PRODUCER, "bootstrap.servers": servers})
    for number in range(first, first + documents):
        account = _account(number)
        value, key, partition = document(number), b"%d" % account, account % partitions
        try:
            producer.produce(topic, value, key, partition)
        except BufferError:
            producer.poll(ROOM_SECONDS)
            producer.produce(topic, value, key, partition)
    left = producer.flush(FLUSH_SECONDS_MAX)
    if left:
        raise RuntimeError(f"{left} documents are not in {topic} after {FLUSH_SECONDS_MAX:g} s")


def document(number: int) -> bytes:
    """Of exactly `DOCUMENT_BYTES`."""
    begin = number * 31 % (len(_NOISE) - DOCUMENT_BYTES)
    head = b'{"id":%d,"account":%d,"amount":%d.%d,"kind":"transfer","note":"' % (
        FIRST_ID + number,
        _account(number),
        10 + number % 89,
        10 + number % 90,
    )
    return b'%s%s"}' % (head, _NOISE[begin : begin + DOCUMENT_BYTES - len(head) - 2])


def _account(number: int) -> int:
    return FIRST_ACCOUNT + number * 7919 % ACCOUNTS
