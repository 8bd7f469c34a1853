"""`penstock explain`: feeds in words and as JSON, found by folder or by store."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from penstock.cli.app import app
from penstock.watch import encode_state
from penstock.watch.causes import DiskBudget, Idle
from penstock.watch.explaining import explained
from penstock.watch.standing import Seen, Standing
from penstock.watch.state import FeedState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from click.testing import Result

    Run = Callable[..., Result]

NOW = 1_763_350_100.0
RUNNING = FeedState("orders", "file:///s", "/f", 1234, "name", NOW - 9, NOW, "running")


def _with_wait(cause: Any) -> FeedState:
    waits = Standing().look([Seen(cause, since=NOW - 30)], NOW)
    return explained(replace(RUNNING, waits=waits))


class Feeds:
    """Folders of feeds, whose processes live until it is closed."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._locks: list[int] = []

    def add(self, name: str, state: FeedState, *, lives: bool = True) -> Path:
        folder = self.place / name
        folder.mkdir(parents=True)
        (folder / "state.json").write_bytes(encode_state(state))
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
        if lives:
            fcntl.flock(lock, fcntl.LOCK_EX)
        self._locks.append(lock)
        return folder

    def close(self) -> None:
        for lock in self._locks:
            os.close(lock)


@pytest.fixture
def feeds(tmp_path: Path) -> Iterator[Feeds]:
    made = Feeds(tmp_path / "store" / "feeds")
    yield made
    made.close()


def test_a_feed_is_explained_in_words(feeds: Feeds, run: Run) -> None:
    folder = feeds.add("a", _with_wait(DiskBudget(2, 300_000, 200_000)))
    result = run("explain", str(folder), code=1)
    lines = result.stdout.splitlines()
    assert lines[0] == f"stuck  {folder}"
    assert lines[1].strip().startswith("Feed orders is stuck; there is no epoch yet")
    assert lines[2].strip().startswith("Queue 2 has written nothing for 30 s: its 293.0 KiB are")
    assert lines[-1].strip().startswith("What you could do: Let the consumer go on")


def test_all_feeds_of_a_store_are_found(feeds: Feeds, run: Run, tmp_path: Path) -> None:
    feeds.add("a", _with_wait(Idle()))
    feeds.add("b", _with_wait(Idle()), lives=False)
    result = run("explain", "--json", "--store", str(tmp_path / "store"), code=1)
    alive, gone = json.loads(result.stdout)
    assert (alive["verdict"], alive["waits"][0]["kind"]) == ("healthy", "idle")
    assert (gone["verdict"], gone["waits"]) == ("down", [])
    assert "is gone since about" in gone["explanation"][0]
    shown = run("explain", code=1).stdout
    assert shown.count("Feed orders is") == 2
    assert "Start it again" in shown


def test_a_healthy_feed_gives_code_zero(feeds: Feeds, run: Run) -> None:
    folder = feeds.add("a", _with_wait(Idle()))
    run("explain", str(folder), code=0)
    stopped = feeds.add("b", explained(replace(RUNNING, phase="stopped")), lives=False)
    assert "was stopped" in run("explain", str(stopped), code=0).stdout, "somebody wanted that"


def test_a_state_of_another_release_does_not_hide_the_others(feeds: Feeds, run: Run) -> None:
    feeds.add("a", _with_wait(Idle()))
    other = feeds.add("b", _with_wait(Idle()))
    (other / "state.json").write_text('{"format": 2}')
    result = run("explain", str(feeds.place), code=1)
    assert "healthy and idle" in result.stdout
    assert "format 2, and this release knows 1" in result.stdout
    told = json.loads(run("explain", str(feeds.place), "--json", code=1).stdout)
    assert "format 2" in told[1]["error"]


def test_it_says_where_to_look_if_there_is_none(run: Run, tmp_path: Path) -> None:
    assert "has no feed" in run("explain", str(tmp_path / "store"), code=1).stderr
    assert "there are no feeds in" in run("explain").stdout
    elsewhere = run("explain", "--store", "postgres://somewhere", code=2)
    assert "name the folder" in elsewhere.stderr
    nowhere = CliRunner().invoke(app, ["explain"], env={"PENSTOCK_STORE": ""})
    assert (nowhere.exit_code, "which feed?" in nowhere.stderr) == (2, True)
