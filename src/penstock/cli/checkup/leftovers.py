"""What crashed runs left in a store, and what mends it."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from typing import TYPE_CHECKING, Final

from penstock.cli.checkup.findings import age, error, note, ok, warning
from penstock.cli.settling import sentence, settle
from penstock.cli.shuffle_view import sized
from penstock.cli.terminal import counted
from penstock.errors import ConfigurationError, CorruptStorageError, PenstockError
from penstock.journal.errors import DamagedLedgerError, ProducerFencedError
from penstock.journal.upkeep import find_ends, list_ledgers, unrest_of
from penstock.locks import is_locked
from penstock.shuffle.feed import NAME_PATTERN
from penstock.shuffle.running import lock_folder
from penstock.sinks.batches import Decisions
from penstock.sinks.collection import FOLDER as SINKS
from penstock.spark.streaming.folders import FEEDS
from penstock.storage import Storage
from penstock.storage.local import LocalFiles
from penstock.storage.storage import LEFTOVER_SECONDS_MIN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.cli.checkup.findings import Finding
    from penstock.journal import OpenStore
    from penstock.journal.upkeep import Unrest
    from penstock.journal.writable import ProducerRecord

DECIDED_SECONDS_MAX: Final = 600.0
"""A batch is committed seconds after it was decided. One that is not has lost its query."""
_REPAIR: Final = "penstock doctor --repair"


def check_leftovers(store: OpenStore, root: Path, *, repair: bool) -> Iterator[Finding]:
    # Journals first: recovery opens them, and opening mends.
    yield from _collections(store)
    yield from _ends(store, root, repair=repair)
    yield from _producers(store, root, repair=repair)
    yield from _unfinished(root, repair=repair)
    yield from _staged(root)
    yield from _feeds(root)


# Journals


def _collections(store: OpenStore) -> Iterator[Finding]:
    damaged = 0
    names = store.collections()
    for name in names:
        try:
            store.collection(name)
        except CorruptStorageError as damage:
            damaged += 1
            yield error("collections", str(damage), "")
    if not damaged:
        yield ok("collections", f"{counted(len(names), 'collection')}, all readable")


def _ends(store: OpenStore, root: Path, *, repair: bool) -> Iterator[Finding]:
    looked_at = torn = 0
    for end in find_ends(store, root):
        looked_at += 1
        if end.unrest is not None:
            torn += 1
            mended = _mended(store, end.journal, end.folder, end.unrest) if repair else None
            yield mended or _unmended(end.journal, end.folder, end.unrest)
        if end.cuts:
            used = sized(sum(path.stat().st_size for path in end.cuts))
            count = counted(len(end.cuts), "torn end")
            said = f"{end.journal}: {count} kept ({used}), the last {end.cuts[-1]}"
            yield note("journals", said, "remove them if you miss nothing")
    if not torn:
        yield ok("journals", f"no unfinished end in {counted(looked_at, 'journal')}")


def _unmended(journal: str, folder: Path, found: Unrest) -> Finding:
    said = f"{journal}: {found.what}"
    if not found.mends:
        todo = f"restore the file from a copy; penstock inspect {folder} --verify tells more"
        return error("journals", f"{said}: rows that were acknowledged are lost", todo)
    if found.loses:
        todo = "who opens it next keeps what is whole, and logs which rows are lost; or "
        return warning("journals", f"{said}: it is not safe against power cuts", todo + _REPAIR)
    return note("journals", said, f"who opens it next mends it, or {_REPAIR}")


def _mended(store: OpenStore, journal: str, folder: Path, found: Unrest) -> Finding:
    try:
        store.probe(journal)
    except (PenstockError, OSError) as failed:
        todo = f"penstock inspect {folder} --verify"
        said = f"{journal}: {found.what}, and cannot be mended: {failed}"
        return error("journals", said, todo)
    if unrest_of(folder, to_disk=True) is not None:
        said = f"{journal}: {found.what}, and is not mended: another process is at work on it"
        return warning("journals", said, "see what stops that process, then look again")
    return ok("journals", f"mended {journal}: {found.what}")


# Producers


def _producers(store: OpenStore, root: Path, *, repair: bool) -> Iterator[Finding]:
    if repair:
        settled, left = settle(store)
        for one in settled:
            yield ok("producers", sentence(one))
        for why in left:
            yield error("producers", why, "")
    living = dead = 0
    for ledger in list_ledgers(root):
        with contextlib.suppress(ProducerFencedError):  # settled and forgotten just now
            try:
                record = ledger.record()
            except DamagedLedgerError as damage:
                if not damage.known.is_settled:
                    dead += 1
                    yield error("producers", str(damage), _REPAIR)
                continue
            if record.settled:
                continue
            if not record.retired and not ledger.is_dead():
                living += 1
                continue
            dead += 1
            yield _dead(root, record)
    if not dead:
        yield ok("producers", f"{counted(living, 'producer')} alive, none dead")


def _dead(root: Path, record: ProducerRecord) -> Finding:
    name = f" ({record.name})" if record.name else ""
    who = f"producer {record.producer}{name} died"
    if record.decision is not None:
        journals = counted(len(record.decision.journals), "journal")
        said = f"{who} after its commit was decided, before {journals} heard of it"
        return warning("producers", said, f"{_REPAIR}, or penstock recover: it is acknowledged")
    if record.touches:
        folder = root / ("retired" if record.retired else "producers") / str(record.producer)
        since = age((folder / "touched").stat().st_mtime)
        journals = counted(len({touch.journal for touch in record.touches}), "journal")
        said = f"{who} with a transaction open in {journals}, {since} ago"
        return warning("producers", said, f"{_REPAIR}, or penstock recover: it is rolled back")
    return note("producers", f"{who} with nothing in flight", "the next producer tidies it up")


# Files


def _unfinished(root: Path, *, repair: bool) -> Iterator[Finding]:
    files = LocalFiles(root)
    before = time.time() - LEFTOVER_SECONDS_MIN
    found = list(files.unfinished(before))
    if not found:
        yield ok("unfinished files", "none older than an hour")
    elif repair:
        yield ok("unfinished files", f"removed {counted(files.sweep(before), 'file')}")
    else:
        used = sized(sum(path.stat().st_size for path in found if path.exists()))
        said = f"{counted(len(found), 'file')} of writers that died ({used}), the first {found[0]}"
        yield note("unfinished files", said, f"{_REPAIR} removes them")


def _staged(root: Path) -> Iterator[Finding]:
    """Parts of sinks that are still staged. Their query's next batch removes them."""
    staged = root / SINKS / "staged"
    storage = Storage.open(root / SINKS)
    for folder in sorted(staged.iterdir()) if staged.is_dir() else ():
        parts = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
        if not parts:
            continue
        newest = max(path.stat().st_mtime for path in parts)
        used = sized(sum(path.stat().st_size for path in parts))
        said = f"query {folder.name}: {counted(len(parts), 'staged part')} ({used}), {age(newest)}"
        try:
            decision = Decisions(storage, folder.name).newest()
        except PenstockError as damaged:
            yield error("sinks", f"{said} old: {damaged}", f"penstock inspect {root / SINKS}")
            continue
        names = {f"staged/{folder.name}/{path.name}" for path in parts}
        is_decided = decision is not None and bool({one.name for one in decision.parts} & names)
        if is_decided and decision is not None and time.time() - newest > DECIDED_SECONDS_MAX:
            yield warning(
                "sinks",
                f"{said} old; batch {decision.batch.number} is decided and was not finished",
                "start the query again from its checkpoint: it finishes the batch",
            )
        else:
            todo = "its next batch removes them; if it never runs again, remove the folder"
            yield note("sinks", f"{said} old, not decided" if not is_decided else said, todo)


# Feeds


def _feeds(root: Path) -> Iterator[Finding]:
    feeds = root / FEEDS
    for folder in sorted(feeds.iterdir()) if feeds.is_dir() else ():
        if not folder.is_dir():
            continue
        if _is_running(folder):
            yield ok("feeds", f"{folder.name} is running")
            continue
        files = [path for path in folder.rglob("*") if path.is_file()]
        used = sized(sum(path.stat().st_size for path in files))
        last = max((path.stat().st_mtime for path in files), default=folder.stat().st_mtime)
        yield note(
            "feeds",
            f"{folder.name} is not running: {used}, last used {age(last)} ago",
            "keep it if its query's checkpoint is to go on; else "
            f"penstock doctor --remove-feed {folder.name}",
        )


def _is_running(folder: Path) -> bool:
    lock = folder / "lock"
    return lock.is_file() and is_locked(lock)


def remove_feed(root: Path, name: str) -> Finding:
    """Only on request: a checkpoint of Spark's may still refer to it."""
    folder = root / FEEDS / name
    if NAME_PATTERN.fullmatch(name) is None or not folder.is_dir():
        there = sorted(path.name for path in (root / FEEDS).glob("*") if path.is_dir())
        raise ConfigurationError(
            f"there is no feed {name!r} in this store; it has: {', '.join(there) or 'none'}"
        )
    used = sized(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
    lock = lock_folder(folder, 0)  # refused while it runs
    try:
        shutil.rmtree(folder)
    finally:
        os.close(lock)
    return ok("feeds", f"removed {name} ({used})")
