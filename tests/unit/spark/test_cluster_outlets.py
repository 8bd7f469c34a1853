"""The driver's outlets, asked from another process's side: over the socket, of a real shuffle."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock as ps
from penstock.errors import ConfigurationError
from penstock.shuffle.embedded import EmbeddedShuffle
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.outlet import Outlet
from penstock.spark.cluster.private import Private
from penstock.spark.cluster.remote import RemoteOutlet
from penstock.spark.cluster.server import ClusterClosedError, Opening, OutletServer
from penstock.spark.streaming.limits import measure
from tests.conformance.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.journal import OpenStore

FEED = Feed("orders", (Binding("orders"),))
WAIT_SECONDS_MAX = 120.0


class Driver:
    """The driver's side: its feeds have their members in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store: OpenStore = ps.open_store(folder / "store", durability="buffered")
        self.store.create(ps.Collection.define("orders", "id BIGINT NOT NULL", "id"))
        self.open_shuffles: list[str] = []
        self.path = Path(tempfile.mkdtemp()) / "outlets"
        self.server = OutletServer(self.path, self._open)

    def _open(self, opening: Opening) -> Outlet:
        if opening.options.get("refuse"):
            raise ConfigurationError("this feed is not for you")
        driver = self

        class Watched(Outlet):
            def close(self) -> None:
                super().close()
                driver.open_shuffles.remove(opening.feed)

        self.open_shuffles.append(opening.feed)
        shuffle = EmbeddedShuffle(FEED, self.store, self.folder / opening.feed, members=2)
        return Watched(shuffle, self.store, FEED)

    def connect(self, feed: str = "feed", **options: str) -> RemoteOutlet:
        return RemoteOutlet(str(self.path), feed, options, is_new=True)

    def write(self, count: int) -> None:
        with self.store.producer() as producer, producer.transaction() as transaction:
            transaction.append("orders", [{"id": number} for number in range(count)])


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path)
    yield made
    made.server.close()
    made.path.unlink(missing_ok=True)
    made.path.parent.rmdir()


def test_a_query_draws_as_if_the_shuffle_was_its_own(driver: Driver) -> None:
    driver.write(30)
    outlet = driver.connect()
    assert not outlet.has_target
    outlet.set_target()
    assert outlet.has_target
    found = outlet.wait_epoch(0, WAIT_SECONDS_MAX)
    assert found is not None
    eventually(lambda: outlet.has_reached(found), "all that was written is in the epoch")
    assert outlet.epoch(found.number).frontier == found.frontier
    assert outlet.newest().number == found.number
    assert outlet.numbers(0) == [found.number]
    assert [share.member for share in outlet.shares()] == [1, 2]
    assert driver.server.shares("feed") == outlet.shares(), "as tasks are told"
    assert measure(outlet, 0, found.number).documents == 30
    assert outlet.figures()["rows_behind"] == 0
    assert outlet.figures()["stall"] is None
    outlet.consumed(found.number)
    assert outlet.wait_epoch(found.number, 0.05) is None
    outlet.close()
    eventually(lambda: not driver.open_shuffles, "the feed is closed with its query")
    with pytest.raises(ClusterClosedError):
        driver.server.shares("feed")


def test_what_goes_wrong_is_told_to_the_query(driver: Driver) -> None:
    with pytest.raises(ConfigurationError, match="not for you"):
        driver.connect(refuse="yes")
    outlet = driver.connect()
    with pytest.raises(ps.PenstockError, match="epoch 99"):
        outlet.epoch(99)
    assert outlet.newest().number == 0, "and it goes on"
    outlet.close()


def test_the_next_run_of_a_query_waits_for_the_end_of_the_last(driver: Driver) -> None:
    first = driver.connect()
    first.newest()
    first.close()
    again = driver.connect()  # while members of the first one end
    assert again.newest().number == 0
    other = driver.connect("other")
    assert sorted(driver.open_shuffles) == ["feed", "other"]
    again.close()
    other.close()


def test_a_closed_cluster_says_so(driver: Driver) -> None:
    outlet = driver.connect()
    outlet.newest()
    closing = threading.Thread(target=driver.server.close)
    closing.start()
    closing.join()
    with pytest.raises(ClusterClosedError, match="stop queries before"):
        outlet.wait_epoch(0, 0.01)
    assert driver.open_shuffles == []
    driver.path.unlink()
    with pytest.raises(ConfigurationError, match="no cluster answers"):
        driver.connect()


def test_what_a_killed_driver_left_is_removed_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of one that lives is not."""
    program = (
        "import os, signal; from penstock.spark.cluster.private import Private\n"
        "private = Private(); private.socket.touch()\n"
        "print(private.socket, flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    left = Path(killed.stdout.strip())
    assert left.exists(), killed.stderr
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    living = Private()
    assert not left.parent.exists()
    second = Private()
    assert living.socket.parent.exists()
    assert living.socket.parent.stat().st_mode & 0o777 == 0o700
    living.close()
    second.close()
    assert list(tmp_path.glob("penstock-*")) == []
