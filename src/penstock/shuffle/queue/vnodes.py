"""Rows of some vnodes: those that a queue has given away are not shown. Pure, over whole columns.

A block that gives vnodes away says so of all rows in blocks with lesser LSNs. So a vnode that comes
back has its rows behind that block; and rows that were written again (survivors) were looked at by
then, wherever they stand in the order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.routing import VNODES
from penstock.shuffle.parcels import VNODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.shuffle.queue.block import PartEntry
    from penstock.shuffle.queue.segment import Loaded

Mask: TypeAlias = npt.NDArray[np.bool_]


class Given:
    """What the blocks of a view give away."""

    def __init__(self, blocks: Iterable[Loaded]) -> None:
        self._lsns = np.zeros(VNODES, np.uint64)
        """Of each vnode: rows in blocks before this LSN are another queue's."""
        for loaded in blocks:
            if loaded.block.gives:
                vnodes = list(loaded.block.gives)
                self._lsns[vnodes] = np.maximum(self._lsns[vnodes], np.uint64(loaded.block.lsn))
        self._last = int(self._lsns.max())

    def left(self, loaded: Loaded, selected: list[bool | Mask]) -> list[bool | Mask]:
        """What of the rows that were selected of a block is this queue's."""
        if loaded.block.lsn >= self._last:
            return selected
        return select_vnodes(loaded, selected, self._lsns <= np.uint64(loaded.block.lsn))


def select_vnodes(
    loaded: Loaded, selected: Sequence[bool | Mask], wanted: Mask
) -> list[bool | Mask]:
    """Only rows of the wanted vnodes, of those that were selected of each part of a block."""
    if wanted.all():
        return list(selected)
    return [
        _of_part(loaded, part, rows, wanted)
        for part, rows in zip(loaded.block.parts, selected, strict=True)
    ]


def _of_part(loaded: Loaded, part: PartEntry, rows: bool | Mask, wanted: Mask) -> bool | Mask:
    if rows is False:
        return False
    found: Mask = wanted[loaded.decode(part).column(VNODE).to_numpy()]
    if rows is not True:
        found &= rows
    if found.all():
        return True
    return found if found.any() else False
