"""Batches as Parquet files: those that a manifest names count, and no others.

    data/QUERY/BATCH/PARTITION-TOKEN.parquet    written by a task
    _manifests/QUERY/BATCH                      makes files a batch: created once, never changed
    _sink/decisions/QUERY/...                   the newest decision of each query

Files that no manifest names are of attempts that failed or lost. A reader goes by the manifests:
`committed_files` here, `penstock.spark.read_manifests` for Spark.
"""

from __future__ import annotations

import functools
import json
from typing import IO, TYPE_CHECKING, Final, cast

import pyarrow.parquet as pq

from penstock.errors import CorruptStorageError
from penstock.sinks.staging import Collected, Sums, grouped, part_name
from penstock.sinks.two_phase import Part, TwoPhaseSink
from penstock.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from penstock.sinks.two_phase import Batch, Decision

_DATA: Final = "data"
_MANIFESTS: Final = "_manifests"
"""Spark passes over names that begin so."""
_SINK: Final = "_sink"
_PLACES_OPEN_MAX: Final = 16


class ParquetSink(TwoPhaseSink):
    def __init__(self, path: str, decisions: str | None = None) -> None:
        """`decisions` is where decisions are kept, if not within `path`: an object store cannot
        keep them."""
        self._path = path
        self._decisions = decisions

    @property
    def records(self) -> Storage:
        if self._decisions is not None:
            return _storage(self._decisions)
        return _storage(self._path).within(_SINK)

    def stage(self, batch: Batch, partition: int, rows: Iterator[pa.RecordBatch]) -> Part | None:
        groups = grouped(rows)
        first = next(groups, None)
        if first is None:
            return None
        name = f"{_folder(batch)}{part_name(partition)}.parquet"
        sums = Sums()
        _storage(self._path).create_from(name, sums.over(_file(first, groups, sums)))
        return Part(name, sums.rows, sums.size_bytes, sums.checksum)

    def commit(self, decision: Decision) -> None:
        batch = decision.batch
        files = [[part.name, part.rows, part.size_bytes] for part in decision.parts]
        manifest = json.dumps({"version": 1, "files": files}).encode()
        # If there is one, it says the same: a decision's parts never change.
        _storage(self._path).create(f"{_MANIFESTS}/{batch.query}/{batch.number:020}", manifest)

    def discard(self, parts: Sequence[Part]) -> None:
        _storage(self._path).delete_all([part.name for part in parts])

    def finish(self, decision: Decision) -> None:
        """Looks at this batch's folder, and once more at the one before: its last attempts may have
        ended after it was committed."""
        storage, batch = _storage(self._path), decision.batch
        kept = {part.name for part in decision.parts}
        if batch.number > 0:
            before = type(batch)(batch.query, batch.number - 1)
            found = storage.read(f"{_MANIFESTS}/{before.query}/{before.number:020}")
            kept.update(manifest_files(found) if found is not None else ())
            self._remove_others(before, kept)
        self._remove_others(batch, kept)

    def _remove_others(self, batch: Batch, kept: set[str]) -> None:
        storage = _storage(self._path)
        storage.delete_all([name for name in storage.names(_folder(batch)) if name not in kept])


def committed_files(path: str, query: str | None = None) -> list[str]:
    """The files of all committed batches below `path`, or of one query's, in their order."""
    storage = _storage(path)
    prefix = f"{_MANIFESTS}/" if query is None else f"{_MANIFESTS}/{query}/"
    found = []
    for name in storage.names(prefix):
        manifest = storage.read(name)
        if manifest is not None:
            found += [f"{storage.place}/{file}" for file in manifest_files(manifest)]
    return found


@functools.lru_cache(maxsize=_PLACES_OPEN_MAX)
def _storage(path: str) -> Storage:
    return Storage.open(path)


def _folder(batch: Batch) -> str:
    return f"{_DATA}/{batch.query}/{batch.number:020}/"


def manifest_files(manifest: bytes) -> list[str]:
    """The names of the files that are the batch."""
    try:
        fields = json.loads(manifest)
        if fields["version"] != 1:
            raise CorruptStorageError(f"a manifest has version {fields['version']}; 1 is known")
        return [str(name) for name, _, _ in fields["files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptStorageError(f"a manifest cannot be read: {manifest[:200]!r}") from error


def _file(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], sums: Sums) -> Iterator[pa.Buffer]:
    collected = Collected()
    with pq.ParquetWriter(cast("IO[bytes]", collected), first.schema) as writer:
        batch: pa.RecordBatch | None = first
        while batch is not None:
            writer.write_batch(batch)
            sums.rows += batch.num_rows
            yield from collected.take()
            batch = next(rest, None)
    yield from collected.take()
