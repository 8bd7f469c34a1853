"""Batches as Parquet files: those that a manifest names count, and no others.

    data/QUERY/BATCH/PARTITION-TOKEN.parquet    written by a task
    _manifests/QUERY/BATCH                      makes files a batch: created once, never changed
    _sink/decisions/QUERY/...                   the newest decision of each query

Files that no manifest names are of attempts that failed or lost. A reader goes by the manifests:
`committed_files` here, `penstock.spark.read_manifests` for Spark.
"""

from __future__ import annotations

import functools
from typing import IO, TYPE_CHECKING, Final, cast

import pyarrow.parquet as pq

from penstock.errors import CorruptStorageError
from penstock.sealed import DamagedFileError, sealed_json, unsealed_json
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
_OLD_MEMBERS: Final = ("version", "files")
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
        manifest = sealed_json({"version": 1, "files": files})
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
            name = f"{_MANIFESTS}/{before.query}/{before.number:020}"
            found = storage.read(name)
            kept.update(manifest_files(found, storage.shown(name)) if found is not None else ())
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
            files = manifest_files(manifest, storage.shown(name))
            found += [f"{storage.place}/{file}" for file in files]
    return found


@functools.lru_cache(maxsize=_PLACES_OPEN_MAX)
def _storage(path: str) -> Storage:
    return Storage.open(path)


def _folder(batch: Batch) -> str:
    return f"{_DATA}/{batch.query}/{batch.number:020}/"


def manifest_files(manifest: bytes, name: str = "a manifest") -> list[str]:
    """The names of the files that are the batch. The manifest's own name is for the error."""
    fields = unsealed_json(name, manifest, _OLD_MEMBERS)
    try:
        if fields["version"] != 1:
            raise CorruptStorageError(f"{name} has version {fields['version']}; 1 is known")
        return [str(file) for file, _, _ in fields["files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(name, f"it is no manifest ({error!r})") from error


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
