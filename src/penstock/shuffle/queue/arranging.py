"""Where the rows of a block lie. Pure.

The merge works out an order beside the rows. Here they are moved, once, before they are written: of
each stage they lie in that order. A block of one stage, which is the rule, needs no other order
then, and who reads takes its rows as they lie in the file, however often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.shuffle.parcels import Stage
    from penstock.shuffle.queue.block import Order, Parcel


def arranged(
    parcels: Sequence[Parcel], order: Order | None
) -> tuple[Sequence[Parcel], Order | None]:
    """One parcel for each stage, and their order. None: they simply follow each other."""
    if order is not None:
        _check(order, sum(batch.num_rows for _, batch in parcels))
    by_stage: dict[Stage, list[pa.RecordBatch]] = {}
    for stage, batch in parcels:
        by_stage.setdefault(stage, []).append(batch)
    if order is None and len(by_stage) == len(parcels):
        return parcels, None
    if len(by_stage) == 1:
        ((stage, batches),) = by_stage.items()
        together = joined(batches)
        return [(stage, together if order is None else together.take(order))], None
    return _of_stages(parcels, by_stage, order)


def _of_stages(
    parcels: Sequence[Parcel],
    by_stage: dict[Stage, list[pa.RecordBatch]],
    order: Order | None,
) -> tuple[list[Parcel], Order | None]:
    numbers = {stage: number for number, stage in enumerate(by_stage)}
    counts = [batch.num_rows for _, batch in parcels]
    # Of each row its stage, and its number among the rows of that: as the parcels came, and then
    # as they come in the block.
    stage_of = np.repeat([numbers[stage] for stage, _ in parcels], counts)
    sizes = np.bincount(stage_of)
    ends = np.cumsum(sizes)
    own = _together(stage_of) - (ends - sizes)[stage_of]
    if order is not None:
        stage_of, own = stage_of[order], own[order]
    places = _together(stage_of)
    stored = np.empty(len(own), np.int64)
    stored[places] = own
    rows = np.split(stored, ends[:-1])
    found = [
        (stage, joined(batches).take(rows[number]))
        for number, (stage, batches) in enumerate(by_stage.items())
    ]
    follow_each_other = bool((places[1:] > places[:-1]).all())
    return found, None if follow_each_other else places


def _together(stage_of: npt.NDArray[np.int64]) -> Order:
    """Where each row is if those of a stage are put side by side, one stage behind the other."""
    places = np.empty(len(stage_of), np.uint32)
    places[np.argsort(stage_of, kind="stable")] = np.arange(len(stage_of))
    return places


def _check(order: Order, rows: int) -> None:
    if len(order) != rows or order.dtype != np.uint32:
        raise LocalProtocolError(f"the order of {rows} rows has {len(order)} ({order.dtype})")
    named = np.zeros(rows, np.bool_)
    named[order[order < rows]] = True
    if not named.all():
        raise LocalProtocolError("the order of a block does not name every row once")


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    concat: Any = pa.concat_batches  # type: ignore[attr-defined] # its stubs do not know it
    return batches[0] if len(batches) == 1 else concat(batches)
