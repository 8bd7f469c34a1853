"""What other processes do in the tests of journals. They are forked: that is quick, and what a
forked process inherits must not matter."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa

from penstock.journal import Collection, open_store
from penstock.journal.file import journal as journal_module
from penstock.journal.file.head import Head, Position
from penstock.journal.file.segment import create_segment
from tests.unit.journal.journal_files import NUMBERS, Writer, append, open_numbers

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkProcess
    from pathlib import Path

    from penstock.journal.file.segment_header import SegmentHeader

PROCESSES: Final = multiprocessing.get_context("fork")
CHILD_S_MAX: Final = 60

pa.array([0])  # at its first use Arrow looks for pandas, for seconds: once here, not in each child


def start(target: Callable[..., object], *arguments: object) -> ForkProcess:
    process = PROCESSES.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def end(*processes: ForkProcess) -> list[int | None]:
    """Waits for all of them; gives their exit codes."""
    for process in processes:
        process.join(CHILD_S_MAX)
    return [process.exitcode for process in processes]


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def append_rows(folder: Path, first: int, appends: int, each: int, segment_bytes_max: int) -> None:
    """Appends rows `first`, `first + 1` ... in order, `each` at a time."""
    store = open_numbers(folder, segment_bytes_max=segment_bytes_max)
    writer = Writer()
    for number in range(appends):
        begin = first + number * each
        append(store, writer.documents(range(begin, begin + each)))


def die_before_the_head_is_written(
    folder: Path, ids: list[int], segment_bytes_max: int, collection: Collection = NUMBERS
) -> None:
    """All bytes of the append are in the file, and the head does not know of them."""
    store = open_numbers(folder, segment_bytes_max=segment_bytes_max, collection=collection)
    payloads = Writer().documents(ids)

    def set_written(self: Head, position: Position) -> None:
        if not rolling:
            _die()
        rolling.pop()
        real(self, position)

    real = Head.set_written
    rolling: list[bool] = []

    def create(folder: Path, header: SegmentHeader) -> int:
        rolling.append(True)
        return create_segment(folder, header)

    vars(journal_module)["create_segment"] = create
    Head.set_written = set_written  # type: ignore[method-assign]
    append(store, payloads)


def die_in_the_middle_of_a_write(folder: Path, ids: list[int], written_bytes: int) -> None:
    """Only the first bytes of the append are in the file."""
    store = open_numbers(folder)
    payloads = Writer().documents(ids)

    def pwritev(descriptor: int, views: list[memoryview], at: int) -> int:
        os.pwrite(descriptor, b"".join(views)[:written_bytes], at)
        _die()

    os.pwritev = pwritev  # type: ignore[assignment]
    append(store, payloads)


def die_with_a_new_segment(folder: Path, ids: list[int], segment_bytes_max: int) -> None:
    """The next segment is there, and the head does not know of it."""
    store = open_numbers(folder, segment_bytes_max=segment_bytes_max)

    def create(folder: Path, header: SegmentHeader) -> int:
        create_segment(folder, header)
        _die()

    vars(journal_module)["create_segment"] = create
    append(store, Writer().documents(ids))


def create_the_same(folder: Path, barrier: Any, failures: Any) -> None:
    """Makes the same store, collection and journals as the others do at this moment."""
    collection = Collection.define("same", "id BIGINT NOT NULL, part INT", "id", "part")
    barrier.wait(CHILD_S_MAX)
    try:
        store = open_store(folder, durability="buffered")
        store.create(collection)
        with store.producer() as producer:
            producer.append("same", [{"id": os.getpid(), "part": part} for part in range(5)])
    except BaseException as error:
        failures.put(repr(error))
        raise


def hold_a_producer(folder: Path, ready: Any, forked: Any) -> None:
    """Opens a transaction, forks a child that lives on, and waits to be killed."""
    store = open_numbers(folder)
    producer = store.producer()
    producer.transaction().append("numbers", {"id": 1})
    child = os.fork()
    if child == 0:
        ready.set()
        signal.pause()
    forked.put(child)
    signal.pause()
