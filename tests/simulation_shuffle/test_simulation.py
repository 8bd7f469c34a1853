"""The shuffle in the simulated world, by seed. A seed that fails is shrunk, and told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from penstock.ids import Kind
from tests.simulation.choices import Choices, Menu, evenly, seldom
from tests.simulation.seeds import Seeds
from tests.simulation.world import World
from tests.simulation_shuffle import cluster, losses, writers
from tests.simulation_shuffle.journals import Journals
from tests.simulation_shuffle.run import run
from tests.simulation_shuffle.shrink import shrink
from tests.simulation_shuffle.writers import Writer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation_shuffle.journals import Journal, Row, Transaction

FEW: Final = 150
SEED_COUNT: Final = 2000
FRESH: Final = 150
"""`python -m tests.simulation_shuffle` runs any number."""

OFTEN: Final = {
    "captured in flight": 0.05,
    "columns added": 0.5,
    "crashes": 0.8,
    "disks lost": 0.2,
    "documents delivered": 20.0,
    "epochs committed": 2.5,
    "epochs given up": 0.1,
    "epochs read as planned in an earlier life": 0.005,
    "gaps": 0.1,
    "hints at what is gone": 0.05,
    "journals deleted": 0.15,
    "journals made anew": 0.15,
    "journals that are back": 0.15,
    "journals suspended": 0.05,
    "members changed": 0.05,
    "overdrawn": 0.5,
    "recoveries": 0.04,
    "repetitions": 0.5,
    "restarts of producers": 0.3,
    "rollbacks": 1.0,
    "room needed": 0.5,
    "rows dropped": 0.08,
    "rows dropped whoever needs them": 1.0,
    "segments dropped": 0.2,
    "spans left open": 0.03,
    "survivors written": 0.01,
    "transactions": 1.5,
}
SEEDS: Final = Seeds("tests.simulation_shuffle", run, shrink, OFTEN)

STEPS: Final = (
    *("Fetch", "Probe", "Report", "SendBarrier", "SendFlush", "SendMark", "SendParcel"),
    *("Answer", "Captured", "GiveBack", "Sync", "Write", "reclaimed", "synced", "written"),
    *("AskProgress", "StartRead", "announced", "barrier", "committed", "prepared"),
)
"""Before each of these everything has crashed, somewhere."""


def test_the_rules_hold_for_a_few_seeds() -> None:
    SEEDS.check_rules(range(FEW))


def test_the_rules_hold_where_members_change_at_every_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And disks are seldom lost: vnodes change hands, with all that is open."""
    monkeypatch.setattr(cluster, "_CHANGED", seldom(900))
    monkeypatch.setattr(cluster, "_LOST", Menu((12, "none"), (1, "one")))
    often = {"handovers": 0.05, "documents taken over": 0.3}
    Seeds("tests.simulation_shuffle", run, shrink, often).check_rules(range(60))


def test_the_rules_hold_where_journals_go_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them, perhaps twice: deleted, moved away for a while, or made anew."""
    monkeypatch.setattr(losses, "_GO", seldom(1000))
    monkeypatch.setattr(losses, "_GONE_AT", evenly(0.5, None, 0.3, 0.8, 1.0, 1.3, 1.6, 2.0))
    often = dict.fromkeys(("journals deleted", "journals made anew", "journals that are back"), 0.8)
    Seeds("tests.simulation_shuffle", run, shrink, often).check_rules(range(60))


def test_the_rules_hold_where_journals_go_while_all_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that no listing of the next life has them, and nobody reads what they have open."""
    monkeypatch.setattr(losses, "_GO", seldom(1000))
    monkeypatch.setattr(losses, "_GONE_WHILE_DOWN", seldom(500))
    monkeypatch.setattr(cluster, "_LOST", Menu((12, "none"), (1, "one")))
    often = {"spans left": 0.05}
    Seeds("tests.simulation_shuffle", run, shrink, often).check_rules(range(60))


class WatchedJournals(Journals):
    """Looks for a transaction's documents in all its journals when one of them acknowledges it."""

    def __init__(self, collections: str) -> None:
        super().__init__(collections)
        self.acknowledged: set[tuple[str, int, int]] = set()

    def append(self, name: str, rows: Sequence[Row]) -> Journal:
        for decided in self.transactions:
            is_acknowledged = any(
                row.hints and (row.producer, row.clock) == (decided.producer, decided.clock)
                for row in rows
            )
            acknowledged = (name, decided.producer, decided.clock)
            if is_acknowledged and acknowledged not in self.acknowledged:  # no repetition
                self.acknowledged.add(acknowledged)
                for home in decided.homes:
                    assert not _unseen(self.all[home], decided), decided
        return super().append(name, rows)


def _unseen(journal: Journal, decided: Transaction) -> list[Row]:
    return [
        row
        for row in journal.rows[journal.head :]
        if row.kind is Kind.CONTINUE
        and row.producer == decided.producer
        and row.clock < decided.clock
    ]


def test_documents_can_be_read_before_anything_acknowledges_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it is with real journals, and the shuffle relies on it, however late rows are seen."""
    monkeypatch.setattr(writers, "_LAGS", evenly(0.0, 3.0))
    acknowledged = 0
    for seed in range(20):
        world, journals = World(Choices(seed)), WatchedJournals("ab")
        places = [f"{name}/part={part}/000" for name in "ab" for part in range(2)]
        for number in range(2):
            Writer(world, journals, f"w{number}", places)
        world.run(3.0)
        acknowledged += len(journals.acknowledged)
    assert acknowledged > 50


@pytest.mark.slow
def test_the_rules_hold_for_all_other_seeds() -> None:
    counts = SEEDS.check_rules(range(FEW, SEED_COUNT))
    never = [step for step in STEPS if not counts[f"crash: {step}"]]
    assert not never, f"nothing crashed at {never}"


@pytest.mark.slow
def test_the_rules_hold_for_fresh_seeds() -> None:
    """Other ones each time: what fails says by which seed, and how to have it again."""
    SEEDS.check_fresh(FRESH)


def test_a_seed_is_replayed_exactly() -> None:
    SEEDS.check_replays(5)


def test_a_script_replays_what_its_seed_did() -> None:
    SEEDS.check_scripts(10)


def test_a_run_without_any_choice_is_peaceful() -> None:
    result = run(script={})
    assert result.violation is None
    assert result.counts["epochs committed"] > 5
    assert not result.counts["crashes"]
    assert not result.counts["epochs given up"]
    assert result.counts["documents delivered"] == result.counts["documents"]
