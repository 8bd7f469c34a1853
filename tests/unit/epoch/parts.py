"""Records in memory that fail when told to, and participants that write down what they did."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from penstock.errors import FencedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.checkpoint.barrier import Barrier
    from penstock.directory.keyvalue import KeyValue, Watch


class MemoryRecords:
    creates_atomically = True

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.before: Callable[[str, str], None] = lambda _call, _name: None
        """Called before each call takes effect, with its kind and name. May raise."""
        self.after: Callable[[str, str], None] = lambda _call, _name: None
        """The same, once it has taken effect: an error leaves its caller in doubt."""
        self._lock = threading.Lock()

    def create(self, name: str, value: bytes) -> bool:
        self.before("create", name)
        with self._lock:
            created = name not in self.values
            self.values.setdefault(name, value)
        self.after("create", name)
        return created

    def read(self, name: str) -> bytes | None:
        self.before("read", name)
        return self.values.get(name)

    def replace(self, name: str, value: bytes) -> None:
        self.values[name] = value

    def shown(self, name: str) -> str:
        return name

    def names(self, prefix: str = "") -> list[str]:
        self.before("names", prefix)
        with self._lock:
            return sorted(name for name in self.values if name.startswith(prefix))

    def delete(self, name: str) -> None:
        self.before("delete", name)
        with self._lock:
            self.values.pop(name, None)

    def delete_all(self, names: Iterable[str]) -> None:
        for name in names:
            self.delete(name)


class FencedKeyValue:
    """A member's view that is fenced as soon as it is told to be."""

    def __init__(self, inner: KeyValue) -> None:
        self.member = inner.member
        self.generation = inner.generation
        self.fenced = False
        self.refused = 0
        """Writes that were tried after that."""
        self._inner = inner

    def write(self, key: str, value: str) -> None:
        if self.fenced:
            self.refused += 1
            raise FencedError(f"member {self.member} was started again elsewhere")
        self._inner.write(key, value)

    def read(self, member: int, key: str) -> str | None:
        return self._inner.read(member, key)

    def scan(self, key: str) -> dict[int, str]:
        return self._inner.scan(key)

    def watch(self, prefix: str = "") -> Watch:
        return self._inner.watch(prefix)

    def check(self) -> None:
        self._inner.check()


class Diary:
    """A participant. What it did outlives it, as if on a disk: give it to the next life."""

    def __init__(self, name: str = "diary", watermark: int | None = None) -> None:
        self.name = name
        self.watermark = watermark
        self.prepared: set[int] = set()
        self.committed: Counter[int] = Counter()
        self.aborted: Counter[int] = Counter()
        self.given_up: list[int] = []
        self.before: Callable[[str, int], None] = lambda _call, _epoch: None
        """Called before each call takes effect. May raise, or wait."""
        self.finished = threading.Condition()

    def capture(self, barrier: Barrier) -> int | None:
        self.before("capture", barrier.epoch)
        return self.watermark

    def prepare(self, epoch: int) -> None:
        self.before("prepare", epoch)
        self.prepared.add(epoch)

    def give_up(self, epoch: int) -> None:
        self.given_up.append(epoch)

    def commit(self, epoch: int) -> None:
        self.before("commit", epoch)
        assert epoch in self.prepared, f"epoch {epoch} was never prepared"
        with self.finished:
            self.committed[epoch] += 1
            self.finished.notify_all()

    def abort(self, epoch: int) -> None:
        self.before("abort", epoch)
        assert epoch not in self.committed, f"epoch {epoch} is committed"
        with self.finished:
            self.aborted[epoch] += 1
            self.finished.notify_all()

    def in_doubt(self) -> list[int]:
        return sorted(self.prepared - set(self.committed) - set(self.aborted))

    def wait_for(self, done: Callable[[Diary], bool], timeout_seconds: float = 20.0) -> bool:
        with self.finished:
            return self.finished.wait_for(lambda: done(self), timeout_seconds)
