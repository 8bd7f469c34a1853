"""Appending to a store that leaves syncing to the system, beside plain writes that do too.

The peer only copies bytes it already has into the page cache. Ours also lays them out and sums them
up, so that each byte passes through the processor three times: this is about memory, not disks.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.journal import append

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.report import Line


def run() -> Iterator[Line]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=Path.cwd()) as folder:
        yield append("buffered.append", Path(folder) / "append", "buffered")
