"""The state of a feed, out of its folder: by whoever can read it, whether its process lives or not.

The process that leads a feed holds the folder's `lock` for as long as it lives, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigurationError
from penstock.watch.encoding import decode_batches, decode_state
from penstock.watch.explaining import gone, silent

if TYPE_CHECKING:
    from penstock.watch.state import FeedState, SparkBatch

STATE_NAME: Final = "state.json"
SPARK_NAME: Final = "spark.json"
LOCK_NAME: Final = "lock"
SILENT_SECONDS: Final = 10.0
"""A process writes its state twice a second, on a busy machine every few seconds."""


class StateMissingError(ConfigurationError):
    """The folder has no state of a feed. Name the folder of one (`penstock shuffle --folder`, the
    `feed_folder` of a query), and see that a feed was ever started there."""


def load(folder: Path | str) -> FeedState:
    """As it was written last; and if its process is gone since, then with this told. Its `phase` is
    `failed` then, unless it was stopped in order. One that lives and writes no more is told of."""
    path = Path(folder) / STATE_NAME
    try:
        text = path.read_bytes()
        written = path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        raise StateMissingError(
            f"{folder} has no {STATE_NAME}: no feed was started there, or by an older release"
        ) from None
    state = decode_state(text, str(path))
    if state.phase in ("stopped", "failed"):
        return state
    if not is_held(Path(folder)):
        return gone(state, written)
    return silent(state, written) if is_silent(Path(folder)) else state


def load_spark(folder: Path | str) -> tuple[SparkBatch, ...]:
    """The last batches of the query that reads the feed; none where no driver of ours runs."""
    path = Path(folder) / SPARK_NAME
    try:
        return decode_batches(path.read_bytes(), str(path))
    except FileNotFoundError:
        return ()


def find_folders(place: Path | str) -> list[Path]:
    """Those of feeds below a folder, which may be one itself."""
    place = Path(place)
    if (place / STATE_NAME).exists():
        return [place]
    return sorted(path.parent for path in place.glob(f"*/{STATE_NAME}"))


def is_silent(folder: Path) -> bool:
    """Whether nothing was written for long."""
    try:
        written = (folder / STATE_NAME).stat().st_mtime
    except OSError:
        return False
    return time.time() - written > SILENT_SECONDS


def is_held(folder: Path) -> bool:
    """Whether a process works in the folder. Who begins there in this very moment tries again."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    return False
