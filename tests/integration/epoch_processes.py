"""Processes of the epoch test: a leader and two members, with snapshots on disk.

They know of each other by gossip, and their records are files; or both are in a PostgreSQL
database, and the members' rows in it take part in the epochs.

One of them is the victim: it kills itself with SIGKILL at its n-th step. A step is the begin or the
end of anything that another process or its own next life can see: a slot written, a record created,
a participant asked to do its part.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, assert_never

from penstock.directory.gossip import GossipKeyValue
from penstock.directory.postgres import PostgresKeyValue
from penstock.epoch.coordinator import Coordinator, LeadershipLostError
from penstock.epoch.decisions import DecisionLog
from penstock.epoch.member import EpochMember
from penstock.epoch.postgres_records import PostgresRecords
from penstock.sinks.postgres import PostgresParticipant
from penstock.snapshot import SnapshotStore
from penstock.snapshot.participant import Captured, SnapshotParticipant
from penstock.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.checkpoint.barrier import Barrier
    from penstock.directory.keyvalue import KeyValue, Watch
    from penstock.epoch.participant import Participant
    from penstock.epoch.records import Records

KEY: Final = b"the key of the test's cluster..."
MEMBERS: Final = (1, 2)
LEADER: Final = 10
PARENT: Final = 100
STOP_KEY: Final = "test:stop"
LEASE_SECONDS: Final = 0.6
PREPARE_SECONDS_MAX: Final = 1.5
PATIENCE_SECONDS: Final = 1.0

Version: TypeAlias = Literal["older", "current", "newer"]
ADDED_LATER: Final = {"flags", "seconds_max", "watermark", "reason", "error", "finished"}
"""Fields without which it is still known what is said."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a cluster is."""

    place: str
    """A folder."""
    seed: str = ""
    """The address of the parent's gossip."""
    conninfo: str | None = None
    """Of a database, in place of gossip and records in files."""
    cluster: str = "penstock"

    def keyvalue(self, member: int) -> GossipKeyValue | PostgresKeyValue:
        if self.conninfo is not None:
            return PostgresKeyValue(member, self.conninfo, self.cluster)
        return GossipKeyValue(member, KEY, [self.seed] if self.seed else [])

    def records(self) -> Records:
        if self.conninfo is not None:
            return PostgresRecords(self.conninfo, self.cluster)
        return Storage.open(self.place).within("cluster")

    def snapshots(self, member: int) -> SnapshotStore:
        return SnapshotStore(Storage.open(self.place).within(f"snapshots-{member}"), member)


class Steps:
    """Counts, and kills this process at the n-th."""

    def __init__(self, fatal: int | None) -> None:
        self._fatal = fatal
        self._count = 0
        self._lock = threading.Lock()

    def step(self) -> None:
        with self._lock:
            self._count += 1
            if self._count == self._fatal:
                os.kill(os.getpid(), signal.SIGKILL)


def as_written_by(version: Version, value: str) -> str:
    """An announcement or acknowledgement in the form of another version. The older one knows
    nothing but which epoch is meant and what is said of it; the newer one says more."""
    fields = json.loads(value)
    match version:
        case "older":
            fields = {name: fields[name] for name in fields if name not in ADDED_LATER}
        case "newer":
            fields |= {"later": {"deep": [1, None]}, "a field": "of a version to come"}
        case "current":
            pass
        case _:
            assert_never(version)
    return json.dumps(fields)


class SteppedKeyValue:
    """A process that runs another version reads and writes its form."""

    def __init__(self, inner: KeyValue, steps: Steps, version: Version = "current") -> None:
        self._inner = inner
        self._steps = steps
        self._version = version
        self.member: Final = inner.member
        self.generation: Final = inner.generation

    def write(self, key: str, value: str) -> None:
        self._steps.step()
        self._inner.write(key, as_written_by(self._version, value))
        self._steps.step()

    def read(self, member: int, key: str) -> str | None:
        return self._inner.read(member, key)

    def scan(self, key: str) -> dict[int, str]:
        found = self._inner.scan(key)
        if self._version != "older":
            return found
        # What it does not know, it does not see.
        return {member: as_written_by("older", value) for member, value in found.items()}

    def watch(self, prefix: str = "") -> Watch:
        return self._inner.watch(prefix)

    def check(self) -> None:
        self._inner.check()


class SteppedRecords:
    def __init__(self, inner: Records, steps: Steps) -> None:
        self._inner = inner
        self._steps = steps
        self.creates_atomically: Final = inner.creates_atomically

    def create(self, name: str, value: bytes) -> bool:
        self._steps.step()
        created = self._inner.create(name, value)
        self._steps.step()
        return created

    def read(self, name: str) -> bytes | None:
        return self._inner.read(name)

    def replace(self, name: str, value: bytes) -> None:
        self._inner.replace(name, value)

    def shown(self, name: str) -> str:
        return name

    def names(self, prefix: str = "") -> list[str]:
        return self._inner.names(prefix)

    def delete(self, name: str) -> None:
        self._inner.delete(name)

    def delete_all(self, names: Iterable[str]) -> None:
        self._inner.delete_all(names)


class SteppedParticipant:
    def __init__(self, inner: Participant, steps: Steps) -> None:
        self._inner = inner
        self._steps = steps
        self.name: Final = inner.name

    def capture(self, barrier: Barrier) -> int | None:
        self._steps.step()
        return self._inner.capture(barrier)

    def prepare(self, epoch: int) -> None:
        self._steps.step()
        self._inner.prepare(epoch)
        self._steps.step()

    def give_up(self, epoch: int) -> None:
        self._inner.give_up(epoch)

    def commit(self, epoch: int) -> None:
        self._steps.step()
        self._inner.commit(epoch)
        self._steps.step()

    def abort(self, epoch: int) -> None:
        self._steps.step()
        self._inner.abort(epoch)
        self._steps.step()

    def in_doubt(self) -> list[int]:
        return self._inner.in_doubt()


class Rows(PostgresParticipant):
    """Writes a row for each epoch, just before the line is drawn."""

    def __init__(self, setting: Setting, member: int) -> None:
        super().__init__(setting.conninfo or "", "rows", member, setting.cluster)
        self._row = setting.cluster, member

    def capture(self, barrier: Barrier) -> None:
        with self.writing() as cursor:
            cursor.execute("INSERT INTO rows VALUES (%s, %s, %s)", (*self._row, barrier.epoch))
        super().capture(barrier)


def parts_of(member: int, epoch: int) -> Mapping[str, bytes]:
    return {"state": f"member {member} at epoch {epoch}".encode(), "constant": b"always the same"}


def run_member(
    setting: Setting, member: int, fatal: int | None, version: Version = "current"
) -> None:
    steps = Steps(fatal)
    participants: list[Participant] = [
        SnapshotParticipant(
            setting.snapshots(member),
            lambda barrier: Captured(parts_of(member, barrier.epoch), watermark=barrier.epoch),
            keep=10**6,
        )
    ]
    if setting.conninfo is not None:
        participants.append(Rows(setting, member))
    with contextlib.closing(setting.keyvalue(member)) as keyvalue:
        following = EpochMember(
            SteppedKeyValue(keyvalue, steps, version),
            DecisionLog(SteppedRecords(setting.records(), steps)),
            [SteppedParticipant(each, steps) for each in participants],
            patience_seconds=PATIENCE_SECONDS,
        )
        with following:
            _wait_for_stop(keyvalue, "members")
            while any(each.in_doubt() for each in participants):
                following.check()
                time.sleep(0.01)
        following.check()


def run_leader(
    setting: Setting, slot: int, fatal: int | None, version: Version = "current"
) -> None:
    steps = Steps(fatal)
    stopping = threading.Event()
    with contextlib.closing(setting.keyvalue(slot)) as keyvalue:
        leading = Coordinator(
            SteppedKeyValue(keyvalue, steps, version),
            SteppedRecords(setting.records(), steps),
            MEMBERS,
            prepare_seconds_max=PREPARE_SECONDS_MAX,
            lease_seconds=LEASE_SECONDS,
        )
        with leading:
            threading.Thread(target=_stop_at_word, args=(keyvalue, stopping), daemon=True).start()
            while not stopping.is_set():
                try:
                    leading.begin().result()
                except LeadershipLostError:
                    leading.check()
        leading.check()


def _wait_for_stop(keyvalue: KeyValue, who: str) -> None:
    with keyvalue.watch(STOP_KEY) as watch:
        while who not in (keyvalue.read(PARENT, STOP_KEY) or ""):
            watch.wait(1.0)


def _stop_at_word(keyvalue: KeyValue, stopping: threading.Event) -> None:
    _wait_for_stop(keyvalue, "leader")
    stopping.set()
