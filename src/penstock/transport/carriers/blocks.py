"""Memory for large frames, used again as soon as nobody refers to what was read into it.

Fresh memory comes as pages that the system fills with zeros at the first touch; for a frame of
several mebibytes that takes as long as half of its transfer.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import pyarrow as pa

FREE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Kept by a connection for its next frames. Two frames of a usual large size."""
BLOCK_BYTES_MIN: Final = 2 * 1024 * 1024
"""Smaller ones come from Arrow's pool, which has its own ways to use memory again."""


class Blocks:
    """Used by one reading thread; what it lends may be dropped by any."""

    def __init__(self) -> None:
        self._free: deque[pa.Buffer] = deque()

    def lend(self, size: int) -> tuple[memoryview, pa.Buffer]:
        """Memory to write to, and the same as a buffer to read from. Only the buffer, and what is
        made of it, keeps the memory lent."""
        if size < BLOCK_BYTES_MIN:
            buffer = pa.allocate_buffer(size)
            return memoryview(buffer).cast("B"), buffer
        block = self._fitting(size)
        loan = _Loan(self._free, block)
        return memoryview(block).cast("B")[:size], pa.foreign_buffer(block.address, size, base=loan)

    def _fitting(self, size: int) -> pa.Buffer:
        for _ in range(len(self._free)):
            block = self._free.popleft()
            if size <= block.size <= size + size // 4:  # a batch keeps little more than its own
                return block
            self._free.append(block)
        return pa.allocate_buffer(size)


class _Loan:
    """Gives its block back when the last buffer that was made of it is gone."""

    __slots__ = ("_block", "_free")

    def __init__(self, free: deque[pa.Buffer], block: pa.Buffer) -> None:
        self._free = free
        self._block = block

    def __del__(self) -> None:
        # Only steps that no other thread can come between: this runs wherever the buffer died.
        if sum(block.size for block in tuple(self._free)) + self._block.size <= FREE_BYTES_MAX:
            self._free.append(self._block)
