"""Snapshots: a member's state at an epoch, as files that are checked when they are read.

Read in this order: names.py (what its files are called), manifest.py (their list, and its bytes),
rules.py (which snapshot counts, which are kept), writer.py, snapshot.py (reading one), store.py
(all of a member's), participant.py (how it takes part in the cluster's epochs).
docs/snapshots.md has the layout and what holds after a crash.
"""

from penstock.snapshot.errors import CorruptSnapshotError, MissingSnapshotError
from penstock.snapshot.manifest import JSON
from penstock.snapshot.participant import Captured, SnapshotParticipant
from penstock.snapshot.snapshot import Snapshot
from penstock.snapshot.store import Recovery, Retained, Skipped, SnapshotStore
from penstock.snapshot.writer import SnapshotWriter

__all__ = [
    "SnapshotStore",
    "SnapshotWriter",
    "Snapshot",
    "SnapshotParticipant",
    "Captured",
    "Recovery",
    "Skipped",
    "Retained",
    "JSON",
    "CorruptSnapshotError",
    "MissingSnapshotError",
]
