"""Parcels out of a round: the rows to send, by the member that owns their key, in key order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.shuffle.keys import vnodes_of_rows
from penstock.shuffle.parcels import READS_SCHEMA, ROLLBACK_SCHEMA, Stage, parcel_schema
from penstock.transport.frames import FRAME_COST_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.routing import Assignment
    from penstock.sequence.outcomes import Rows
    from penstock.shuffle.slice.reads import Piece, Read
    from penstock.shuffle.slice.rounds import Round

LARGE_ROWS: Final = 4_096
"""From here on a piece that overlaps with no other is a parcel of its own. For smaller ones it
costs less to be copied together than to be sent apart."""


def parcels(round_: Round, assignment: Assignment) -> Iterator[tuple[int, Stage, pa.RecordBatch]]:
    """Member, stage and rows. Over all parcels of one member and stage the keys ascend."""
    columns = round_.columns
    for first, last in _groups(columns.pieces):
        pieces = columns.pieces[first:last]
        rows = slice(int(columns.starts[first]), int(columns.starts[last]))
        kept = np.flatnonzero(round_.keep[rows])
        if not len(kept):
            continue
        documents = _together(pieces)
        vnodes = vnodes_of_rows(
            pieces[0].read.binding,
            documents,
            columns.offsets[rows],
            [(piece.read.journal, piece.rows) for piece in pieces],
        )
        # `order` has the rows to send as they are to be sent; None: all, as they stand.
        order: Rows | None = None if len(kept) == documents.num_rows else kept
        keys = columns.keys[rows][kept]
        if len(pieces) > 1 and not (keys[1:] >= keys[:-1]).all():
            order = kept[np.argsort(keys, kind="stable")]
        members = assignment.member_indexes[vnodes if order is None else vnodes[order]]
        counts = np.bincount(members).tolist()
        if max(counts) < len(members):
            by_member = np.argsort(members, kind="stable")  # of bytes: NumPy counts them
            order = by_member if order is None else order[by_member]
        numbers = np.repeat(
            np.array([piece.read.number for piece in pieces], np.uint32),
            [piece.rows for piece in pieces],
        )
        is_timed = pieces[0].read.binding.is_timed
        batch = _batch(
            [
                numbers,
                columns.offsets[rows],
                columns.producers_of(rows),
                columns.clocks[rows],
                *([columns.times[rows]] if is_timed else []),
                vnodes,
            ],
            documents,
            order,
            parcel_schema(documents.schema, is_timed=is_timed),
        )
        stage = Stage(pieces[0].read.binding.place, pieces[0].batch.version)
        begin = 0
        for index, count in enumerate(counts):
            if count:
                yield assignment.members[index], stage, batch.slice(begin, count)
                begin += count


class FrameCosts:
    """What the frames of a round take of a member's credit beside its rows, at most. Each costs
    something, and there may be many."""

    def __init__(self) -> None:
        self._stages: dict[tuple[int, int], int] = {}
        self._rollbacks = frame_bytes(ROLLBACK_SCHEMA)

    def of(self, pieces: Sequence[Piece]) -> int:
        """If every parcel has rows for the member, and every binding has rollbacks."""
        pieces_of: dict[tuple[int, int], list[Piece]] = {}
        for piece in pieces:
            pieces_of.setdefault((piece.read.binding.place, piece.batch.version), []).append(piece)
        size = len({binding for binding, _ in pieces_of}) * self._rollbacks
        for stage, own in pieces_of.items():
            if stage not in self._stages:
                piece = own[0]
                schema = parcel_schema(
                    piece.batch.documents.schema, is_timed=piece.read.binding.is_timed
                )
                self._stages[stage] = frame_bytes(schema)
            # Where one parcel ends and the next begins, at least one of them is large.
            large = sum(piece.rows for piece in own) // LARGE_ROWS
            size += min(len(own), 1 + 2 * large) * self._stages[stage]
        return size


def frame_bytes(schema: pa.Schema) -> int:
    """What a frame costs beside its values: a fixed part, what describes its columns and fills them
    up, and for the first one of a stage, the schema."""
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    return FRAME_COST_BYTES + 2 * pa.ipc.get_record_batch_size(empty) + schema.serialize().size


def announcement(reads: Sequence[Read]) -> pa.RecordBatch:
    """What the numbers of reads in parcels stand for."""
    columns: list[pa.Array[Any]] = [
        pa.array([read.number for read in reads], pa.uint32()),
        pa.array([read.binding.place for read in reads], pa.uint16()),
        pa.array([read.known_as for read in reads], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=READS_SCHEMA)


def _groups(pieces: Sequence[Piece]) -> Iterator[tuple[int, int]]:
    """Pieces [first, last) that become parcels together: of one stage, small ones, and those whose
    keys overlap."""
    first, rows, reached = 0, 0, 0
    for place, piece in enumerate(pieces):
        before = pieces[first]
        is_other = (
            piece.read.binding.place != before.read.binding.place
            or piece.batch.version != before.batch.version
        )
        is_apart = max(rows, piece.rows) >= LARGE_ROWS and int(piece.keys[0]) >= reached
        if place > first and (is_other or is_apart):
            yield first, place
            first, rows, reached = place, 0, 0
        rows += piece.rows
        reached = max(reached, int(piece.keys[-1]))
    yield first, len(pieces)


def _together(pieces: Sequence[Piece]) -> pa.RecordBatch:
    parts = [piece.batch.documents.slice(piece.begin, piece.rows) for piece in pieces]
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)  # type: ignore[attr-defined]


def _batch(
    columns: list[np.ndarray[Any, Any]],
    documents: pa.RecordBatch,
    order: Rows | None,
    schema: pa.Schema,
) -> pa.RecordBatch:
    if order is not None:
        columns = [column[order] for column in columns]
        documents = documents.take(order)
    return pa.RecordBatch.from_arrays([*map(pa.array, columns), *documents.columns], schema=schema)
