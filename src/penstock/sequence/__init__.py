"""What each document of a journal is to its producer: new, repeated, committing or rolled back.

The rule is `sequence()`: one document, one producer's state, one outcome. `sequence_rows()` walks
it over a batch and is the oracle. `sequence_batch()` gives the same result for all producers of a
batch at once without looking at documents one by one; it is what readers use. `sequence_run()`
takes a run of rows from its first and last clock alone, where these decide.
"""

from penstock.sequence.batch import sequence_batch
from penstock.sequence.columns import StateColumns
from penstock.sequence.outcomes import (
    UNSEEN,
    AckPartialCommitError,
    Discards,
    Fault,
    Outcome,
    OutsideWithPrecedingContinueError,
    Place,
    ProducerState,
    Sequenced,
    SequenceFaultError,
)
from penstock.sequence.rule import sequence, sequence_rows
from penstock.sequence.run import Run, sequence_run

__all__ = [
    "Outcome",
    "ProducerState",
    "StateColumns",
    "UNSEEN",
    "sequence",
    "sequence_rows",
    "sequence_batch",
    "Run",
    "sequence_run",
    "Sequenced",
    "Discards",
    "Fault",
    "Place",
    "SequenceFaultError",
    "OutsideWithPrecedingContinueError",
    "AckPartialCommitError",
]
