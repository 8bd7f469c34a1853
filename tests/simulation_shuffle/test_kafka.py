"""The shuffle over a Kafka in the simulated world, by seed: every committed row once, no
transaction in two epochs, keys in order, whatever crashes and however late markers come."""

from __future__ import annotations

from typing import Any, Final

import pytest

from penstock.shuffle.session.state import SessionState
from tests.simulation.seeds import Seeds
from tests.simulation_shuffle.cluster import Parts
from tests.simulation_shuffle.kafka_run import run
from tests.simulation_shuffle.kafka_topics import Topics
from tests.simulation_shuffle.shrink import shrink

FEW: Final = 60
SEED_COUNT: Final = 180
FRESH: Final = 30
OFTEN: Final = {
    "aborts": 1.0,
    "crashes": 0.7,
    "disks lost": 0.2,
    "documents delivered": 10.0,
    "entries compacted": 5.0,
    "epochs committed": 2.0,
    "ids expired": 0.1,
    "looks at the log": 1.0,
    "recoveries": 0.01,
    "restarts that go on in the log": 0.05,
    "transactions": 2.0,
    "transactions that fence": 0.2,
    "transactions that time out": 0.1,
}


SEEDS: Final = Seeds(
    "tests.simulation_shuffle --kafka", run, lambda result: shrink(result, play=run), OFTEN
)


def test_the_rules_hold_for_a_few_seeds() -> None:
    SEEDS.check_rules(range(FEW))


@pytest.mark.slow
def test_the_rules_hold_for_all_other_seeds() -> None:
    """94: an id expired, and compaction took the entry that said that its last transaction was
    over."""
    SEEDS.check_rules(range(FEW, SEED_COUNT))


@pytest.mark.slow
def test_the_rules_hold_for_fresh_seeds() -> None:
    """Other ones each time: what fails says by which seed, and how to have it again."""
    SEEDS.check_fresh(FRESH)


def test_a_seed_is_replayed_exactly() -> None:
    SEEDS.check_replays(3)


def test_a_recovery_leaves_no_hint_behind() -> None:
    """A disk is lost while a transaction is open; the session after the recovery goes on."""
    script = {("crash 1", 0): 3, ("p0 actions", 1): 1, ("early crash", 0): 1, ("lost", 1): 1}
    result = run(script=script)
    assert result.violation is None
    assert result.counts["recoveries"] == 1


class DoesNotMatch(SessionState):
    """Markers are commits of their own, as where the log may not be read."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more | {"has_log": False})


def test_without_the_log_transactions_are_torn() -> None:
    parts = Parts(
        session_state=DoesNotMatch,
        patches={f"{Topics.__module__}.Topics.transaction_log": lambda *_: None},
    )
    found = (run(seed, parts=parts).violation for seed in range(FEW))
    assert any(violation is not None and "is torn" in violation for violation in found)
