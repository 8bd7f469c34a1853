"""The power fails while a batch is written to a collection: run again, it is there once.

Cut short after any of its changes to the disk; see `tests/power_cuts.py` for what is left then.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.journal import Collection, open_store
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.sinks.batches import commit_batch
from penstock.sinks.collection import CollectionSink
from penstock.sinks.two_phase import Batch
from tests.faults import Stage, report
from tests.power_cuts import scratch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

EVERY = 7
"""Of the changes, each seventh is tried: it has no common factor with what a batch does again and
again. 1 tries all of them, and takes that much longer."""


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def write(folder: Path, number: int, *tasks: list[int]) -> None:
    sink, batch = CollectionSink(folder.as_uri(), "c"), Batch("query", number)
    parts = []
    for partition, ids in enumerate(tasks):
        rows = pa.record_batch({"id": ids, "half": [each % 2 for each in ids]})
        parts.append(sink.stage(batch, partition, iter([rows])))
    commit_batch(sink, batch, [part for part in parts if part is not None])


def story(folder: Path, reports: Path) -> None:
    write(folder, 0, [1, 2], [3])
    report(reports, "first")
    write(folder, 1, [4, 5], [6])
    report(reports, "second")


def seen(folder: Path) -> Counter[Any]:
    found: Counter[Any] = Counter()
    with open_store(folder) as store:
        store.recover()
        for cut in take_cut(store, [journal.name for journal in store.journals("c")]):
            for part in read_documents(store, cut, columns=["id"]):
                found.update(part.documents.column("id").to_pylist())
    return found


def test_power_cut_while_batches_are_written(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with open_store(folder) as store:
        store.create(Collection.define("c", "id BIGINT NOT NULL, half INT NOT NULL", "id", "half"))
    recording = stage.record(story, folder, tmp_path / "told")
    outcomes = set()
    for change, chance, when in recording.cuts(EVERY):
        with scratch() as left:
            promised = recording.cut(change, chance, left)
            found = seen(left)
            whole = [Counter(), Counter(range(1, 4)), Counter(range(1, 7))]
            assert found in whole[len(promised) :], f"{when}, told {promised}"
            outcomes.add(whole.index(found))
            # Spark runs the batch again for which it was not told that it is committed.
            for number in range(len(promised), 2):
                write(left, number, *([[1], [2, 3]], [[4, 5, 6]])[number])
            write(left, 2, [7])
            assert seen(left) == Counter(range(1, 8)), f"{when}, told {promised}"
    assert outcomes == {0, 1, 2}
