"""A feed over topics in this process: what it delivers, and what it tells of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.journal.kafka.address import BOOTSTRAP, KafkaAddress, Subscription
from penstock.journal.kafka.store import KafkaStore
from penstock.shuffle.embedded import EmbeddedShuffle
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.outlet import Outlet
from penstock.shuffle.resume import NOTHING
from penstock.testing.kafka.machine import wait_until
from penstock.watch import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.testing.kafka import KafkaCluster
    from penstock.watch import FeedState

SECONDS_MAX = 120.0
"""Only a failure takes this long, on however loaded a machine."""
STEP_SECONDS = 0.1


class TopicFeed:
    """One member, from its making to `close`. Another one in the same folder goes on."""

    def __init__(
        self, kafka: KafkaCluster, folder: Path, *topics: str, last: Any = NOTHING
    ) -> None:
        address = KafkaAddress({BOOTSTRAP: kafka.bootstrap_servers}, {"rows": Subscription(topics)})
        self._store = KafkaStore(address)
        self._folder = folder
        feed = Feed("rows", (Binding("rows"),))
        self._shuffle = EmbeddedShuffle(feed, self._store, folder, members=1)
        self._outlet = Outlet(self._shuffle, self._store, feed)
        self.last = last
        """The epoch up to which it is read."""
        self.values: list[str] = []

    def close(self) -> None:
        self._outlet.close()
        self._store.close()

    def step(self) -> None:
        epoch = self._outlet.wait_epoch(self.last.number, STEP_SECONDS)
        if epoch is None:
            return
        for member in self._shuffle.members:
            for found in self._shuffle.read(member, self.last, epoch):
                values = found.batch.column("value").to_pylist()
                self.values += [(one or b"").decode() for one in values]
        self._outlet.consumed(epoch.number)
        self.last = epoch

    def wait_for(self, *values: str) -> None:
        """Until it has delivered exactly these, in any order."""

        def has_all() -> bool:
            self.step()
            return len(self.values) >= len(values)

        wait_until(has_all, f"{values}", SECONDS_MAX, lambda: f"{self.values} came")
        assert sorted(self.values) == sorted(values)

    def read_until_it_fails(self) -> None:
        def never() -> bool:
            self.step()
            return False

        wait_until(never, "a failure", SECONDS_MAX, lambda: " ".join(self.state.explanation))

    def wait_until_down(self) -> str:
        """How it is explained then."""
        told = (lambda: self.state.verdict == "down", "the state to tell", SECONDS_MAX)
        wait_until(*told, lambda: " ".join(self.state.explanation))
        return " ".join(self.state.explanation)

    @property
    def state(self) -> FeedState:
        return load(self._folder)

    def wait_until(self, is_so: Callable[[FeedState], bool], what: str) -> FeedState:
        """Until its state tells it. It is read on meanwhile."""

        def tells() -> bool:
            self.step()
            return is_so(self.state)

        wait_until(tells, what, SECONDS_MAX, lambda: " ".join(self.state.explanation))
        return self.state


def is_waiting(kind: str) -> Callable[[FeedState], bool]:
    return lambda state: any(wait.kind == kind for wait in state.waits)
