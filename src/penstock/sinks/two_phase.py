"""What a sink must be able to do, so that a batch is committed once through any crash.

Subclass `TwoPhaseSink` for a sink of your own, run `penstock.testing.sinks.SinkConformance` on it,
and give it to Spark with `penstock.spark.SinkStreamWriter`. In which order its methods are called,
and what a crash between two of them leads to, is in batches.py.
"""

from __future__ import annotations

import abc
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import LocalProtocolError
from penstock.sealed import DamagedFileError, sealed_json, unsealed_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from penstock.epoch.records import Records

_OLD_MEMBERS: Final = ("query", "batch", "attempt", "parts", "prepared")
_WAY_OUT: Final = (
    "other queries are not concerned. Restore it from a copy: without it nobody knows which rows "
    "are the batch, and whether they were committed"
)
_QUERY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of one query."""

    query: str
    """Spark's id of the query. A query whose checkpoint was deleted gets another one, and begins
    with batch 0 again: so a number alone names nothing."""
    number: int

    def __post_init__(self) -> None:
        if _QUERY.fullmatch(self.query) is None:
            raise LocalProtocolError(
                f"{self.query!r} cannot be the id of a query: up to 64 letters, digits, '-', '_'"
            )
        if self.number < 0:
            raise LocalProtocolError(f"a batch cannot have the number {self.number}")

    def __str__(self) -> str:
        return f"batch {self.number} of query {self.query}"


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that one attempt of a task has staged, under a name that no other attempt has."""

    name: str
    rows: int
    size_bytes: int = 0
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """Which parts are the batch, and what the sink said when it had prepared them."""

    batch: Batch
    attempt: int
    """Counts up when what was prepared turned out to be lost. The parts stay the same."""
    parts: tuple[Part, ...]
    prepared: str

    @property
    def order(self) -> tuple[int, int]:
        """Of two decisions of a query, the greater one is the later one."""
        return self.batch.number, self.attempt

    def to_bytes(self) -> bytes:
        parts = [[part.name, part.rows, part.size_bytes, part.checksum] for part in self.parts]
        return sealed_json(
            {
                "query": self.batch.query,
                "batch": self.batch.number,
                "attempt": self.attempt,
                "parts": parts,
                "prepared": self.prepared,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "the decision of a batch") -> Decision:
        """The name is for the error."""
        fields = unsealed_json(name, data, _OLD_MEMBERS, _WAY_OUT)
        try:
            return cls(
                Batch(str(fields["query"]), int(fields["batch"])),
                int(fields["attempt"]),
                tuple(
                    Part(str(name), int(rows), int(size_bytes), int(checksum))
                    for name, rows, size_bytes, checksum in fields["parts"]
                ),
                str(fields["prepared"]),
            )
        except (ValueError, KeyError, TypeError, LocalProtocolError) as error:
            raise DamagedFileError(name, f"it is no decision ({error!r})", _WAY_OUT) from error


class TwoPhaseSink(abc.ABC):
    """Somewhere that batches go. It is pickled, sent to tasks and built anew for every batch: each
    of its methods may be called in another process, so it keeps nothing but where it writes."""

    @property
    @abc.abstractmethod
    def records(self) -> Records:
        """Where decisions are kept: a `penstock.storage.Storage` on a shared disk, say."""

    @abc.abstractmethod
    def stage(self, batch: Batch, partition: int, rows: Iterator[pa.RecordBatch]) -> Part | None:
        """In a task: makes its rows durable where no reader sees them, and says where. None if
        there are none. A task that fails, or runs twice, leaves a part that nobody asks for."""

    def prepare(self, batch: Batch, parts: Sequence[Part]) -> str:  # noqa: ARG002
        """Gets ready to commit these parts, and says what `commit` has to know about that. What an
        earlier `prepare` of this query left, and no decision names, is to be undone first."""
        return ""

    @abc.abstractmethod
    def commit(self, decision: Decision) -> None:
        """Makes the parts visible, all at once. Called again, by the same process or another, it
        does nothing if they are visible already; they may have been removed by then.
        CommitFailedError says that what was prepared is lost, for ever, and nothing is visible: it
        is then prepared and decided again."""

    def abandon(self, batch: Batch, prepared: str) -> None:  # noqa: B027
        """Another decision holds: undoes a `prepare` of a moment ago. Nothing by default."""

    @abc.abstractmethod
    def discard(self, parts: Sequence[Part]) -> None:
        """Removes staged parts that no decision names, if they are there."""

    @abc.abstractmethod
    def finish(self, decision: Decision) -> None:
        """The batch is committed. Removes what nobody needs any more: parts that were only staged,
        and those of other attempts, of this batch and of the query's earlier ones."""
