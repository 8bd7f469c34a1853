"""What a member does while tests cut it short. Importable by the process that plays it."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from penstock import disk
from penstock.checkpoint.barrier import Barrier, Flags
from penstock.snapshot import Captured, SnapshotParticipant, SnapshotStore
from penstock.storage import Storage, StorageError
from penstock.storage import local as local_module
from tests.faults import report

if TYPE_CHECKING:
    from pathlib import Path

EPOCHS = {2: "commit", 3: "abort", 4: "commit", 5: "commit", 6: "commit"}
FULL = 5
KEEP = 2
HELD_BYTES_MAX = 100
"""So the offsets are in the manifest, and the others in files."""


def state_of(epoch: int) -> dict[str, bytes]:
    """Two parts change with every epoch, one with none."""
    return {
        "queue": b"queue %d" % epoch * 200,
        "offsets": b"%d" % epoch,
        "fixed": b"never changes" * 50,
    }


def open_member(folder: Path) -> SnapshotParticipant:
    def capture(barrier: Barrier) -> Captured:
        parts = {name: [data[:100], data[100:]] for name, data in state_of(barrier.epoch).items()}
        return Captured(parts, {"epoch": barrier.epoch}, barrier.epoch)

    store = SnapshotStore(Storage.open(folder), 7)
    return SnapshotParticipant(store, capture, keep=KEEP, held_bytes_max=HELD_BYTES_MAX)


def make_store(folder: Path) -> Path:
    member = open_member(folder)
    member.capture(Barrier(1, 1))
    member.prepare(1)
    member.commit(1)
    return folder


def story(folder: Path, reports: Path) -> None:
    member = open_member(folder)
    member.recover()
    for epoch, decision in EPOCHS.items():
        member.capture(Barrier(epoch, epoch, Flags.FULL_SNAPSHOT if epoch == FULL else 0))
        member.prepare(epoch)
        report(reports, f"prepared {epoch}")
        if decision == "commit":
            member.commit(epoch)
            report(reports, f"committed {epoch}")
        else:
            member.abort(epoch)
            report(reports, f"aborted {epoch}")


def fresh(folder: Path, reports: Path) -> None:
    """The first file of all: its folders are made on the way."""
    Storage.open(folder / "deep" / "er").create("x/y/record", b"whole")
    report(reports, "created 1")
    Storage.open(folder / "deep" / "er").create("x/z/record", b"whole")
    report(reports, "created 2")


def doubtful(folder: Path, reports: Path) -> None:
    """The disk fails to sync a folder just after a name came into it. Whoever then finds that name,
    by reading, listing or failing to create it, may act on it: it must not be lost any more."""
    real = disk.sync_folder
    failing = [False]

    def sync_folder(place: Path) -> None:
        if failing[0]:
            failing[0] = False
            raise OSError(errno.EIO, "the disk failed")
        real(place)

    setattr(local_module, "sync_folder", sync_folder)  # noqa: B010 - not its by name
    storage = Storage.open(folder)
    for number, way in enumerate(("read", "list", "create")):
        name = f"decision-{number}"
        failing[0] = True
        try:
            storage.create(name, b"commit")
        except StorageError:
            report(reports, f"doubtful {number}")
        if way == "read":
            seen = storage.read(name) == b"commit"
        elif way == "list":
            seen = name in storage.names()
        else:
            seen = not storage.create(name, b"abort")
        if seen:
            report(reports, f"seen {number}")
            os.close(os.open(os.devnull, os.O_RDONLY))  # the power may fail here
