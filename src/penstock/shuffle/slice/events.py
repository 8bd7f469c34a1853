"""What happens to a Slice, and what it wants done about it. Reads are named by their numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from penstock.checkpoint import Barrier
    from penstock.frontier import Frontier, ProducerFrontier
    from penstock.journal.store import JournalBatch
    from penstock.journal.transaction_log import Marker
    from penstock.sequence import ProducerState
    from penstock.shuffle.marks import Mark
    from penstock.shuffle.parcels import Stage


class HintIndex(Protocol):
    """Which bindings of a cohort read a journal."""

    def targets(self, journal: str, cohort: int) -> tuple[int, ...]: ...


# Events


@dataclass(frozen=True, slots=True)
class ReadStarted:
    """The Session wants this journal read for this binding, from where the entries end."""

    read: int
    binding: int
    journal: str
    entries: tuple[ProducerFrontier, ...] = ()
    identity: str = ""
    known_as: str = ""
    """What frontiers and queues call it, if that is not its name."""


@dataclass(frozen=True, slots=True)
class AllReadsStarted:
    """All first listings are in, and their reads were started before this."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What a journal holds. Also comes for a fetch that found its offset dropped."""

    read: int
    first_kept: int
    write_head: int
    states: Mapping[int, ProducerState] = field(default_factory=dict)
    """Where producers stand at `first_kept`, if rows that were asked for lie before it."""


@dataclass(frozen=True, slots=True, eq=False)
class Fetched:
    """The answer to Fetch: rows from its offset on, and how far there are some."""

    read: int
    batches: tuple[JournalBatch, ...]
    write_head: int


@dataclass(frozen=True, slots=True)
class Vanished:
    """The journal is gone, for now or for good, or another one has its name. What was fetched of it
    still counts."""

    read: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Rows [begin, end) of a journal are gone, or with nothing between the two all from `begin` on;
    and whoever reads the store wants to fail then."""

    read: int
    begin: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class ReplayFetched:
    """The answer to Replay: what there is of the range up to, not with, `reached`."""

    read: int
    batches: tuple[JournalBatch, ...]
    reached: int
    kept_from: int = 0
    """Of the range, what is below this is dropped."""


@dataclass(frozen=True, slots=True)
class Flushed:
    """A member's Queue has made durable all that came before the flush."""

    member: int
    cycle: int
    lsn: int


@dataclass(frozen=True, slots=True)
class ProgressAsked:
    """The Session wants to know, when there is something to tell."""


@dataclass(frozen=True, slots=True)
class BarrierClaimed:
    """The member's injector had a barrier. The snapshot is taken now."""

    barrier: Barrier


SliceEvent: TypeAlias = (
    ReadStarted
    | AllReadsStarted
    | Probed
    | Fetched
    | Vanished
    | Lost
    | ReplayFetched
    | Flushed
    | ProgressAsked
    | BarrierClaimed
)


# Effects


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask what the journal holds; then Probed, with states if the offset is dropped."""

    read: int
    journal: str
    offset: int
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read so many bytes from the offset on, but at least one row; wait if there is none."""

    read: int
    journal: str
    offset: int
    bytes_max: int
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Replay:
    """Read some of [begin, end) of the journal, at once or not at all; then ReplayFetched."""

    read: int
    journal: str
    begin: int
    end: int
    identity: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class SendReads:
    """To every member: what read numbers stand for."""

    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True, eq=False)
class SendParcel:
    member: int
    stage: Stage
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True, eq=False)
class SendRollbacks:
    """To every member."""

    stage: Stage
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class SendMark:
    member: int
    mark: Mark


@dataclass(frozen=True, slots=True)
class SendFlush:
    """To every member; each answers with Flushed."""

    cycle: int


@dataclass(frozen=True, slots=True)
class SendBarrier:
    """To every member."""

    barrier: Barrier


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """To the Session."""

    delta: Frontier
    markers: tuple[Marker, ...] = ()
    """Those among the rows that the delta tells of."""


@dataclass(frozen=True, slots=True)
class TellMissing:
    """To the Session: rows that were promised, [begin, end) of the journal, are not there. With
    nothing between the two, the journal ends at `begin`, and a commit that it had is not in it."""

    read: int
    begin: int
    end: int
    reason: str = ""
    """Why, if that is known."""


@dataclass(frozen=True, slots=True)
class TellEnded:
    """To the Session: the journal is gone, and all that was read of it was told. If it comes back,
    the next read of it goes on where this one ended."""

    read: int


@dataclass(frozen=True, slots=True)
class TellSpansLeft:
    """To the Session: an earlier session sent rows of spans that are open in this journal, and no
    listing has found it. Its read has to be started, or nobody closes them."""

    binding: int
    journal: str
    """As frontiers know it."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Until this clock nothing is due, unless something happens."""

    until: int


SliceEffect: TypeAlias = (
    Probe
    | Fetch
    | Replay
    | SendReads
    | SendParcel
    | SendRollbacks
    | SendMark
    | SendFlush
    | SendBarrier
    | Report
    | TellMissing
    | TellEnded
    | TellSpansLeft
    | Sleep
)
