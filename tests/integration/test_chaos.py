"""Sixteen processes append to the same eight journals, readers look on, and every second one of
the sixteen is killed: nothing is lost, nothing comes twice, no transaction is torn.

`PENSTOCK_CHAOS_SECONDS` sets how long (30 by default).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from penstock.journal import Collection, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("PENSTOCK_CHAOS_SECONDS", "30"))
WRITERS, READERS, PARTITIONS = 16, 2, 4
READER_LOOKS_MIN = 3
COLLECTIONS = ("debits", "credits")
"""Two collections of four partitions each: eight journals."""
SCHEMA = "batch STRING NOT NULL, number INT NOT NULL, part INT NOT NULL"

WRITER = """
import random, sys
from penstock.journal import open_store

folder, log, seed = sys.argv[1], open(sys.argv[2], "a", buffering=1), random.Random(sys.argv[3])
store = open_store(folder, segment_bytes_max=400_000)
producer = store.producer()
count = 0
while True:
    count += 1
    way = seed.choice(("outside", "transaction", "transaction", "rollback"))
    batch = f"{way}-{producer.id}-{count}"
    parts = [seed.randrange(4) for _ in range(seed.randint(1, 12))]
    rows = [{"batch": batch, "number": n, "part": part} for n, part in enumerate(parts)]
    # Line by line: begun before anything is written, done once it was promised.
    log.write(f"begun {way} {batch} {len(rows)}\\n")
    if way == "outside":
        stamped = producer.stamp("debits", rows)
        for _ in range(seed.choice((1, 1, 2))):
            producer.send(stamped)
    else:
        transaction = producer.transaction()
        transaction.append("debits", rows)
        transaction.append("credits", rows)
        transaction.commit() if way == "transaction" else transaction.rollback()
    log.write(f"done {way} {batch} {len(rows)}\\n")
"""

READER = """
import sys
from collections import Counter
from penstock.journal import open_store
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents

folder, log = sys.argv[1], open(sys.argv[2], "a", buffering=1)
store = open_store(folder)
looks = 0
while True:
    found = {name: Counter() for name in ("debits", "credits")}
    journals = [journal.name for name in found for journal in store.journals(name)]
    frontier = store.frontier("debits", "credits")
    for cut in take_cut(store, journals):  # they are all there before the first writer
        for part in read_documents(store, cut, columns=["batch", "number"]):
            columns = part.documents.to_pydict()
            found[cut.journal.split("/")[0]].update(zip(columns["batch"], columns["number"]))
    twice = [key for counter in found.values() for key, count in counter.items() if count > 1]
    together = {name: {key for key in found[name] if key[0].startswith("transaction")}
                for name in found}
    torn = together["credits"] ^ together["debits"]
    torn |= {key for name in found for key in found[name] if key[0].startswith("rollback")}
    looks += 1
    log.write(f"{looks} {len(twice)} {len(torn)} {frontier.unresolved_hints}\\n")
    if twice or torn:
        log.write(f"twice {twice[:3]} torn {list(torn)[:3]}\\n")
        sys.exit(1)
"""


@dataclass
class Told:
    """What the writers said they did."""

    begun: dict[str, tuple[str, int]]
    done: dict[str, tuple[str, int]]

    @classmethod
    def read(cls, logs: list[Path]) -> Told:
        told = cls({}, {})
        for log in logs:
            for line in log.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    when, way, batch, rows = line.split()
                    (told.begun if when == "begun" else told.done)[batch] = (way, int(rows))
        return told


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_sixteen_writers_one_killed_every_second(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]], spark: SparkSession
) -> None:
    folder = tmp_path / "store"
    with open_store(folder) as store:
        for name in COLLECTIONS:
            store.create(Collection.define(name, SCHEMA, ["batch", "number"], "part"))
        with store.producer() as producer:
            for name in COLLECTIONS:
                producer.append(
                    name, [{"batch": "first", "number": n, "part": n} for n in range(PARTITIONS)]
                )
    seed = random.Random(20261115)
    logs: list[Path] = []

    def start_writer() -> subprocess.Popen[bytes]:
        logs.append(tmp_path / f"writer-{len(logs)}.log")
        logs[-1].touch()
        arguments = [str(folder), str(logs[-1]), str(seed.random())]
        process = subprocess.Popen([sys.executable, "-c", WRITER, *arguments])
        processes.append(process)
        return process

    writers = [start_writer() for _ in range(WRITERS)]
    reader_logs = [tmp_path / f"reader-{index}.log" for index in range(READERS)]
    readers = []
    for log in reader_logs:
        readers.append(subprocess.Popen([sys.executable, "-c", READER, str(folder), str(log)]))
        processes.append(readers[-1])

    deadline, killed = time.monotonic() + SECONDS, 0
    # On a slow machine it goes on until the readers, too, have had their share.
    while time.monotonic() < deadline or min(map(looks_of, reader_logs)) < READER_LOOKS_MIN:
        time.sleep(1)  # the pace of the killing, not a wait for anything
        victim = seed.randrange(WRITERS)
        assert writers[victim].poll() is None, "a writer failed by itself"
        writers[victim].send_signal(signal.SIGKILL)
        writers[victim].wait()
        writers[victim] = start_writer()
        killed += 1
        assert all(reader.poll() is None for reader in readers), reader_logs[0].read_text()[-500:]
    for writer in writers:
        writer.kill()
        writer.wait()
    # Readers saw the store under fire many times, and never a duplicate or half a transaction.
    for reader, log in zip(readers, reader_logs, strict=True):
        assert reader.poll() is None, log.read_text()[-500:]

    with open_store(folder) as store:
        store.recover()
        assert all(ledger.record().settled for ledger in store.ledgers())
    told = Told.read(logs)
    assert killed >= SECONDS / 3
    check(told, counted(spark, folder, "debits"), counted(spark, folder, "credits"))


def looks_of(log: Path) -> int:
    """How often a reader has looked; it writes a line each time."""
    return len(log.read_text().splitlines()) if log.exists() else 0


def counted(spark: SparkSession, folder: Path, collection: str) -> Counter[tuple[str, int]]:
    """The batch reader's count."""
    frame = spark.read.format("penstock").option("store", str(folder))
    rows = frame.option("collection", collection).load().select("batch", "number").collect()
    return Counter((row.batch, row.number) for row in rows)


def check(told: Told, debits: Counter[tuple[str, int]], credits_: Counter[tuple[str, int]]) -> None:
    assert len(told.done) > 200, "the writers hardly wrote"
    for counter in (debits, credits_):
        assert max(counter.values()) == 1, "a document came twice"
        assert sum(batch == "first" for batch, _ in counter) == PARTITIONS
    by_batch = [Counter(batch for batch, _ in counter) for counter in (debits, credits_)]
    unknown = (by_batch[0].keys() | by_batch[1].keys()) - told.begun.keys() - {"first"}
    assert not unknown, "documents that nobody wrote"
    for batch, (way, rows) in told.begun.items():
        in_debits, in_credits = by_batch[0][batch], by_batch[1][batch]
        story = f"{way} {batch} of {rows} rows: {in_debits} debits, {in_credits} credits"
        if way == "outside":
            assert in_credits == 0, story
            assert in_debits == rows or batch not in told.done, f"lost: {story}"
        elif way == "transaction":
            assert in_debits == in_credits, f"torn: {story}"
            assert in_debits in (0, rows), f"torn: {story}"
            assert in_debits == rows or batch not in told.done, f"lost: {story}"
        else:
            assert in_debits == in_credits == 0, f"rolled back, but there: {story}"
