"""Where a store is: room on the disk, a file system that keeps its promises, and the clock."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from typing import TYPE_CHECKING, Final

from penstock.cli.checkup.findings import error, note, ok, warning
from penstock.cli.shuffle_view import sized
from penstock.disk import sync_folder
from penstock.ids import clock_elapsed, clock_from_unix, clock_to_datetime
from penstock.journal.upkeep import newest_clock
from penstock.locks import try_lock
from penstock.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.cli.checkup.findings import Finding

FREE_BYTES_MIN: Final = 1024**3
FREE_SHARE_MIN: Final = 0.05
CLOCK_AHEAD_SECONDS_MAX: Final = 60
"""A producer that appends more than a million documents a second runs ahead of the clock."""


def check_place(root: Path) -> Iterator[Finding]:
    yield _disk(root)
    yield from _file_system(root)
    yield _clock(root)


def _disk(root: Path) -> Finding:
    found = shutil.disk_usage(root)
    said = f"{sized(found.free)} of {sized(found.total)} are free at {root}"
    if found.free < FREE_BYTES_MIN or found.free < found.total * FREE_SHARE_MIN:
        return warning("disk", said, "make room, or set a retention on large collections")
    return ok("disk", said)


def _file_system(root: Path) -> Iterator[Finding]:
    """Tries each promise in a folder of its own, whose name no store looks at."""
    probe = root / f".doctor-{secrets.token_hex(4)}"
    try:
        probe.mkdir()
    except OSError as failed:
        yield note("file system", f"this process may not write in {root}: {failed.strerror}")
        return
    broken = []
    try:
        for promise, keeps in _PROMISES:
            try:
                kept = keeps(probe)
            except OSError as failed:
                kept = False
                promise = f"{promise} ({failed.strerror})"  # noqa: PLW2901 - with its reason
            if not kept:
                broken.append(promise)
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    if broken:
        yield error(
            "file system",
            f"{root} does not keep what a store needs: {', '.join(broken)}",
            "keep the store on a local file system such as ext4 or xfs",
        )
    else:
        yield ok("file system", "locks, atomic creation, renaming and syncing work")


def _locks(folder: Path) -> bool:
    """Whether a second open file is refused a lock that the first one has, and gets it after."""
    with (folder / "lock").open("w") as one, (folder / "lock").open("r+") as other:
        refused = try_lock(one.fileno()) and not try_lock(other.fileno())
        one.close()
        return refused and try_lock(other.fileno())


def _creates(folder: Path) -> bool:
    storage = Storage.open(folder)
    created = storage.create("record", b"first"), storage.create("record", b"second")
    return created == (True, False) and storage.read("record") == b"first"


def _renames(folder: Path) -> bool:
    path, new = folder / "replaced", folder / "new"
    path.write_bytes(b"old")
    with path.open("rb") as before:
        new.write_bytes(b"new")
        new.rename(path)
        return (before.read(), path.read_bytes()) == (b"old", b"new")


def _syncs(folder: Path) -> bool:
    descriptor = os.open(folder / "synced", os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, b"synced")
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    sync_folder(folder)
    return True


_PROMISES: Final[tuple[tuple[str, Callable[[Path], bool]], ...]] = (
    ("locks between processes (flock)", _locks),
    ("that of two who create a file one succeeds (link)", _creates),
    ("that a file is replaced as a whole (rename)", _renames),
    ("syncing of files and folders (fsync)", _syncs),
)


def _clock(root: Path) -> Finding:
    newest = newest_clock(root)
    if not newest:
        return ok("clock", "no document has a clock yet")
    seconds, _ = clock_elapsed(newest, clock_from_unix(int(time.time())))
    moment = clock_to_datetime(newest).isoformat(timespec="seconds")
    if seconds > CLOCK_AHEAD_SECONDS_MAX:
        return warning(
            "clock",
            f"the store has a clock of {moment}, {seconds:,} s ahead of this machine's",
            "set this machine's clock right, or find who wrote with a wrong one: moments given to "
            "--as-of, delays and retention go by these clocks",
        )
    return ok("clock", f"not before the newest clock in the store, {moment}")
