"""Any sequence of snapshots, commits, retention and crashes: what is there is whole, and right.

The model is a dictionary of what each epoch's state was. A crash ends a step at any of its changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.snapshot import SnapshotStore
from penstock.storage import Storage
from penstock.storage.arrow import ArrowFiles
from tests.unit.snapshot.crashing import Crash, CrashingFiles
from tests.unit.storage.places import mock_filesystem

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.snapshot import Snapshot

NAMES = ("a", "b", "c")
State = dict[str, bytes]

CRASH = st.none() | st.tuples(st.integers(1, 6), st.booleans())
WRITE = st.tuples(
    st.just("write"),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from((b"", b"1", b"22", b"333"))),
    st.booleans(),
    st.sampled_from(("finish", "finish", "finish", "discard", "leave")),
)
STEP = st.one_of(
    WRITE,
    WRITE,
    st.tuples(st.just("again")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("forget"), st.integers(0, 3)),
    st.tuples(st.just("retain"), st.integers(1, 3), st.booleans()),
)


@dataclass
class World:
    files: ArrowFiles = field(default_factory=lambda: ArrowFiles(mock_filesystem(), "root/snap"))
    epoch: int = 0
    attempt: int = 0
    states: dict[tuple[int, int], State] = field(default_factory=dict)
    """By epoch and attempt: all that were begun to be finished."""
    certain: set[int] = field(default_factory=set)
    """Epochs that are finished for sure, and were not dropped or forgotten."""
    committed: set[int] = field(default_factory=set)
    base: Snapshot | None = None

    def store(self, files: CrashingFiles | ArrowFiles) -> SnapshotStore:
        return SnapshotStore(Storage(files, "memory"), 1, clock=lambda: 0.0)

    def run(self, step: tuple[object, ...], crash: tuple[int, bool] | None) -> None:
        files = CrashingFiles(self.files, crash[0], done=crash[1]) if crash else self.files
        method: Callable[..., None] = getattr(self, f"_{step[0]}")
        try:
            method(self.store(files), *step[1:])
        except Crash:
            self.base = None  # a new process has verified nothing yet
        self.check()

    def check(self) -> None:
        store = self.store(self.files)
        assert self.certain <= set(store.epochs())
        assert set(store.committed()) >= self.committed & self.certain
        for epoch in store.epochs():
            snapshot = store.load(epoch)
            expected = self.states[epoch, snapshot.attempt.number]
            assert {name: snapshot.part(name).to_pybytes() for name in snapshot.parts} == expected
            assert snapshot.attributes == {"attempt": snapshot.attempt.number}
        recovery = store.recover()
        assert recovery.skipped == []
        newest = max(store.epochs(), default=None)
        assert (recovery.chosen.epoch if recovery.chosen is not None else None) == newest

    def _write(self, store: SnapshotStore, state: State, based: bool, ending: str) -> None:
        self.epoch += 1
        self._attempt(store, state, self.base if based else None, ending)

    def _again(self, store: SnapshotStore) -> None:
        """Another attempt at the same epoch."""
        if self.epoch and self.epoch not in self.committed:
            base = self.base if self.base is not None and self.base.epoch < self.epoch else None
            self._attempt(store, {"a": b"again"}, base, "finish")

    def _attempt(
        self, store: SnapshotStore, state: State, base: Snapshot | None, ending: str
    ) -> None:
        self.attempt += 1
        if ending == "finish":
            self.states[self.epoch, self.attempt] = state
        with store.begin(self.epoch, self.attempt, base=base) as writer:
            for name, data in state.items():
                old = base.parts.get(name) if base is not None else None
                if old is not None and base is not None and base.part(name).to_pybytes() == data:
                    writer.refer(name)
                else:
                    writer.add(name, data)
            if ending == "finish":
                self.base = writer.finish({"attempt": self.attempt})
                self.certain.add(self.epoch)
            elif ending == "leave":
                writer._open = False  # as if it died: what it wrote stays

    def _commit(self, store: SnapshotStore) -> None:
        if self.epoch in self.certain:
            store.commit(self.epoch)
            self.committed.add(self.epoch)

    def _forget(self, store: SnapshotStore, back: int) -> None:
        epoch = self.epoch - back
        if epoch >= 1 and not self.store(self.files).committed().count(epoch):
            if self.base is not None and self.base.epoch == epoch:
                self.base = None
            self.certain.discard(epoch)
            store.forget(epoch)
            assert epoch not in store.epochs()

    def _retain(self, store: SnapshotStore, keep: int, committed_only: bool) -> None:
        there = self.store(self.files)
        # A retention that was cut short may leave the mark of an epoch that is gone.
        counted = set(there.epochs()) & set(there.committed() if committed_only else there.epochs())
        kept = sorted(counted)[-keep:]
        floor = kept[0] if len(kept) == keep else 0
        self.certain -= {epoch for epoch in self.certain if epoch < floor}
        if self.base is not None and self.base.epoch < floor:
            self.base = None
        retained = store.retain(keep, counts=counted.__contains__)
        assert all(epoch < floor for epoch in retained.epochs)
        assert set(kept) <= set(store.epochs())
        assert not [epoch for epoch in store.epochs() if epoch < floor]
        self._check_no_garbage(store, floor)

    def _check_no_garbage(self, store: SnapshotStore, floor: int) -> None:
        """Nothing of an epoch that is over is left, but for parts that are referred to."""
        referred = set()
        for name in self.files.entries("member-1/manifests"):
            attempt = name.name.rpartition("/")[2]
            text = self.files.open(name.name)
            assert text is not None, attempt
            referred |= set(text.read().decode(errors="replace").split('"'))
        for part in self.files.entries("member-1/parts"):
            inner = part.name.removeprefix("member-1/")
            assert int(inner[6:26]) >= floor or inner in referred, inner
        assert all(epoch >= floor for epoch in store.committed())


@given(st.lists(st.tuples(STEP, CRASH), max_size=14))
@settings(max_examples=300)
def test_what_remains_is_whole(
    steps: list[tuple[tuple[object, ...], tuple[int, bool] | None]],
) -> None:
    world = World()
    for step, crash in steps:
        world.run(step, crash)
