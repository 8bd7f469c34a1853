"""Processes of the epoch test: a leader and members on gossip, with records and snapshots on disk.

One of them is the victim: it kills itself with SIGKILL at its n-th step. A step is the begin or the
end of anything that another process or its own next life can see: a slot written, a record created,
a participant asked to do its part.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

from penstock.cluster.gossip import GossipKeyValue
from penstock.epoch.coordinator import Coordinator, LeadershipLostError
from penstock.epoch.decisions import DecisionLog
from penstock.epoch.member import EpochMember
from penstock.snapshot import SnapshotStore
from penstock.snapshot.participant import Captured, SnapshotParticipant
from penstock.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.checkpoint.barrier import Barrier
    from penstock.cluster.keyvalue import KeyValue, Watch
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


class SteppedKeyValue:
    def __init__(self, inner: KeyValue, steps: Steps) -> None:
        self._inner = inner
        self._steps = steps
        self.member: Final = inner.member

    def write(self, key: str, value: str) -> None:
        self._steps.step()
        self._inner.write(key, value)
        self._steps.step()

    def read(self, member: int, key: str) -> str | None:
        return self._inner.read(member, key)

    def scan(self, key: str) -> dict[int, str]:
        return self._inner.scan(key)

    def watch(self, prefix: str = "") -> Watch:
        return self._inner.watch(prefix)


class SteppedRecords:
    def __init__(self, inner: Records, steps: Steps) -> None:
        self._inner = inner
        self._steps = steps

    def create(self, name: str, value: bytes) -> bool:
        self._steps.step()
        created = self._inner.create(name, value)
        self._steps.step()
        return created

    def read(self, name: str) -> bytes | None:
        return self._inner.read(name)

    def names(self, prefix: str = "") -> list[str]:
        return self._inner.names(prefix)

    def delete(self, name: str) -> None:
        self._inner.delete(name)


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


def snapshots(place: str, member: int) -> SnapshotStore:
    return SnapshotStore(Storage.open(place).within(f"snapshots-{member}"), member)


def parts_of(member: int, epoch: int) -> Mapping[str, bytes]:
    return {"state": f"member {member} at epoch {epoch}".encode(), "constant": b"always the same"}


def run_member(place: str, member: int, seed: str, fatal: int | None) -> None:
    steps = Steps(fatal)
    participant = SnapshotParticipant(
        snapshots(place, member),
        lambda barrier: Captured(parts_of(member, barrier.epoch), watermark=barrier.epoch),
        keep=10**6,
    )
    records = Storage.open(place).within("cluster")
    with GossipKeyValue(member, KEY, [seed]) as keyvalue:
        following = EpochMember(
            SteppedKeyValue(keyvalue, steps),
            DecisionLog(SteppedRecords(records, steps)),
            [SteppedParticipant(participant, steps)],
            patience_seconds=PATIENCE_SECONDS,
        )
        with following:
            _wait_for_stop(keyvalue, "members")
            while participant.in_doubt():
                following.check()
                time.sleep(0.01)
        following.check()


def run_leader(place: str, slot: int, seed: str, fatal: int | None) -> None:
    steps = Steps(fatal)
    records = Storage.open(place).within("cluster")
    stopping = threading.Event()
    with GossipKeyValue(slot, KEY, [seed]) as keyvalue:
        leading = Coordinator(
            SteppedKeyValue(keyvalue, steps),
            SteppedRecords(records, steps),
            MEMBERS,
            prepare_seconds_max=PREPARE_SECONDS_MAX,
            lease_seconds=LEASE_SECONDS,
        )
        with leading:
            watcher = threading.Thread(
                target=lambda: (_wait_for_stop(keyvalue, "leader"), stopping.set()), daemon=True
            )
            watcher.start()
            while not stopping.is_set():
                try:
                    leading.begin().result()
                except LeadershipLostError:
                    leading.check()
        leading.check()


def _wait_for_stop(keyvalue: GossipKeyValue, who: str) -> None:
    with keyvalue.watch(STOP_KEY) as watch:
        while who not in (keyvalue.read(PARENT, STOP_KEY) or ""):
            watch.wait(1.0)
