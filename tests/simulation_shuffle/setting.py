"""What one run is about: the feed, the members, and how small everything is."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from penstock.ids import clock_duration
from penstock.routing import assign
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.plan import Plan, make_plan
from tests.simulation.choices import Menu, evenly
from tests.simulation_shuffle.journals import Journals
from tests.simulation_shuffle.losses import RETENTION
from tests.simulation_shuffle.network import FRAME_BYTES
from tests.simulation_shuffle.oracle import Oracle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.routing import Assignment
    from tests.simulation.choices import Choices

UNLIMITED: Final = 10**9
_SIZES: Final = Menu((3, 1), (5, 2), (2, 3), (1, 4))
_COLLECTIONS: Final = evenly("a", "ab", "abc")
_BINDINGS: Final = Menu((3, 0), (2, 1))
"""How many read a collection that another reads too."""
_PRIORITIES: Final = Menu((3, 0), (1, 1), (1, 2))
_DELAYS: Final = Menu((4, 0.0), (1, 0.2))
_JOURNALS: Final = evenly(1, 2, 3)
_WRITERS: Final = evenly(1, 2, 3)
_BUDGETS: Final = Menu((2, UNLIMITED), (1, 3000), (1, 1000))
_ALIGNED: Final = evenly(5.0, 0.2, 0.0)
SCARCE: Final = 3 * 1024
"""A row may be more than there is credit for."""
_WINDOWS: Final = evenly(32 * 1024, 8 * 1024, SCARCE)
_REAL: Final = Menu((5, False), (1, True))

SMALL: Final[dict[str, object]] = {
    "penstock.shuffle.session.state.GONE_SECONDS": 0.3,
    "penstock.shuffle.slice.reads.GAP_SLACK": clock_duration(0, 50_000_000),
    "penstock.shuffle.slice.state.FETCH_BYTES": 2048,
    "penstock.shuffle.slice.state.ROUND_ROWS_MAX": 12,
    "penstock.shuffle.queue.machine.MERGED_ROWS_MAX": 6,
    "penstock.shuffle.queue.machine.MERGED_BYTES_MAX": 4096,
    "penstock.shuffle.queue.handover.MERGED_ROWS_MAX": 6,
    "penstock.shuffle.slice.parcelling.frame_bytes": lambda _: FRAME_BYTES,
    "penstock.shuffle.slice.state.frame_bytes": lambda _: FRAME_BYTES,
    "penstock.transport.credit.WINDOW_BYTES_MIN": 1024,
}
"""Limits that a run of a few hundred documents would never come to."""


@dataclass(frozen=True, slots=True)
class Setting:
    assignment: Assignment
    feed: Feed
    plan: Plan
    journals: Journals
    places: tuple[str, ...]
    """The names of the journals there will be."""
    writers: int
    budget_bytes: int
    aligned_seconds_max: float
    is_real: bool
    """With real logs beside the models."""
    window_bytes: int
    read_ahead_bytes: int = 16 * 1024
    oracle: type[Oracle] = Oracle
    retention: Menu[str] = RETENTION
    journals_go: bool = True
    """Some of them, in some runs."""

    @property
    def members(self) -> tuple[int, ...]:
        return self.assignment.members


def choose_setting(choices: Choices) -> Setting:
    def choose_binding(collection: str) -> Binding:
        return Binding(
            collection,
            priority=choices.choose("priorities", _PRIORITIES),
            read_delay_seconds=choices.choose("read delays", _DELAYS),
        )

    collections = choices.choose("collections", _COLLECTIONS)
    bindings = [choose_binding(collection) for collection in collections]
    bindings += [choose_binding("a") for _ in range(choices.choose("more bindings", _BINDINGS))]
    return make_setting(
        choices.choose("members", _SIZES),
        *bindings,
        journals=choices.choose("journals", _JOURNALS),
        writers=choices.choose("writers", _WRITERS),
        budget_bytes=choices.choose("budget", _BUDGETS),
        aligned_seconds_max=choices.choose("aligned", _ALIGNED),
        is_real=choices.choose("real", _REAL),
        window_bytes=choices.choose("window", _WINDOWS),
    )


def make_setting(
    members: int,
    *bindings: Binding,
    journals: int = 1,
    writers: int = 0,
    budget_bytes: int = UNLIMITED,
    aligned_seconds_max: float = 5.0,
    is_real: bool = False,
    window_bytes: int = 32 * 1024,
) -> Setting:
    collections = sorted({binding.collection for binding in bindings})
    # One more, that nobody reads.
    store = Journals([*collections, "unread"])
    feed = Feed("simulated", bindings)
    return Setting(
        assign(range(1, members + 1)),
        feed,
        make_plan(feed, store),  # type: ignore[arg-type] # all that it asks is there
        store,
        tuple(
            f"{collection}/part={number}/000"
            for number in range(journals)
            for collection in store.collections
            if collection != "unread" or number == 0
        ),
        writers,
        budget_bytes,
        aligned_seconds_max,
        is_real,
        window_bytes,
    )


@contextlib.contextmanager
def small(setting: Setting) -> Iterator[None]:
    """Makes the limits small."""
    with contextlib.ExitStack() as stack:
        if setting.is_real:  # what a crash leaves of a file is played, too
            stack.enter_context(patch("os.fsync"))
            stack.enter_context(patch("os.fdatasync"))
        for name, value in SMALL.items():
            stack.enter_context(patch(name, value))
        yield
