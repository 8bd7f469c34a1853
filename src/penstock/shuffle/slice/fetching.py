"""The Slice's hands: probes and reads journals for it, and waits where there is nothing yet.

Fetches that follow each other go on with one reader of the journal. A journal that is read to its
end is looked at again and again; with many of those, the looks are spaced so that they take a tenth
of a processor at most.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from penstock.errors import CorruptStorageError, LocalProtocolError, PenstockError
from penstock.journal.errors import (
    OffsetDroppedError,
    RowsTakenBackError,
    UnknownJournalError,
)
from penstock.journal.names import shown
from penstock.journal.store import NextRows
from penstock.shuffle.slice.events import (
    Fetch,
    Fetched,
    Lost,
    Probe,
    Probed,
    Replay,
    ReplayFetched,
    SliceEvent,
    Vanished,
)
from penstock.shuffle.slice.reads import row_bytes_of
from penstock.threads import Pool, supervised

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from penstock.journal.store import JournalBatch, ReadableStore, States
    from penstock.journal.store import Probe as Found

    _Batches: TypeAlias = Generator[JournalBatch, None, None]
    _Wish: TypeAlias = Probe | Fetch | Replay

READERS: Final = 2
"""Threads. Arrow and the disk work while the interpreter does something else."""
LOOK_SECONDS: Final = 0.02
GATHER_SECONDS: Final = 0.05
"""So long a journal that was read to its end is left alone: what is written bit by bit is read
together. A fetch, and all that follows from it, takes milliseconds however little it brings."""
MISSED_SECONDS: Final = 3.0
"""So long a journal is missed before a reader fails because of it: a broker may not have heard yet
of a topic that another one listed."""
SHORT_SECONDS: Final = 45.0
"""So long a log may end before the offset up to which it was read. After a change of leader the
high watermark stays low until dead replicas are out of sync, which takes a broker up to 30 s; only
an unclean election leaves it low for good."""
REPLAY_BYTES: Final = 4 * 1024 * 1024
GOING_ON_MAX: Final = 8
"""Readers that are kept between fetches, each with a file, and up to a frame (4 MiB) of rows that
were more than was asked for."""
TOGETHER_BYTES: Final = 2 * 1024 * 1024
TOGETHER_READS_MAX: Final = 64
"""Of what is fetched by one call, where a store reads many journals together: more costs less, and
is there later."""
RESTS_BYTES_MAX: Final = 16 * 1024 * 1024
"""What is kept of such rows where more journals are read in turn than readers are kept. What does
not fit is read again. To let older rows go for it would let all of them go before their turn."""

log = logging.getLogger("penstock.shuffle")


class Fetcher:
    """`deliver` gets what was found, `fail` what went wrong; both from threads of this."""

    def __init__(
        self,
        store: ReadableStore,
        name: str,
        deliver: Callable[[SliceEvent], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._deliver = deliver
        self._pool = Pool(READERS, f"{name} reads", fail)
        self._going_on: OrderedDict[int, tuple[int, JournalBatch | None, _Batches]] = OrderedDict()
        """By read, a reader that has come to this offset, and what it has read beyond."""
        self._rests: dict[int, tuple[int, JournalBatch, int]] = {}
        """By read, what a reader that is gone had read from this offset on, and its bytes."""
        self._rests_bytes = 0
        self._fetched: set[int] = set()
        """The reads among which what is kept of such rows is divided."""
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[float, Fetch]] = {}
        """By read, from when on it is looked for more, and what is wished for."""
        self._probes_pending: list[Probe] = []
        self._fetches_pending: list[Fetch] = []
        """Submitted, and not begun; where a store reads many journals together."""
        self._missed: dict[int, tuple[float, _Wish | None]] = {}
        """By read, since when its journal is missed, and what is to be asked again."""
        self._short: dict[int, float] = {}
        """By read, since when its log ends before the offset up to which it was read."""
        self._closing = threading.Event()
        self._looks = supervised(f"{name} looks", self._look, fail=fail, until=self._closing.is_set)
        self._looks.start()

    def submit(self, *wishes: Probe | Fetch | Replay) -> None:
        """Those that wait together may be read together."""
        if not self._store.reads_together:
            for wish in wishes:
                self._pool.submit(self._do, wish)
            return
        probes = [wish for wish in wishes if isinstance(wish, Probe)]
        fetches = [wish for wish in wishes if isinstance(wish, Fetch)]
        with self._lock:
            self._probes_pending += probes
            self._fetches_pending += fetches
        if probes:
            self._pool.submit(self._probe_pending)
        for _ in _groups(fetches):
            self._pool.submit(self._fetch_pending)
        for wish in wishes:
            if isinstance(wish, Replay):
                self._pool.submit(self._do, wish)

    def _probe_pending(self) -> None:
        with self._lock:
            probes, self._probes_pending = self._probes_pending, []
        if probes:
            self._probe_together(probes)

    def _fetch_pending(self) -> None:
        """What has gathered while all threads were busy goes by one call: journals come, and run
        out, one by one. There are never more groups than calls of this."""
        with self._lock:
            fetches = next(_groups(self._fetches_pending), [])
            del self._fetches_pending[: len(fetches)]
        if fetches:
            self._fetch_together(fetches)

    def _do(self, wish: Probe | Fetch | Replay) -> None:
        try:
            match wish:
                case Probe():
                    self._probe(wish)
                case Fetch():
                    self._fetch(wish)
                case Replay():
                    self._replay(wish)
        except (CorruptStorageError, RowsTakenBackError) as error:
            # Another journal in its place does not fit what was read of it before.
            try:
                self._found(wish)
            except UnknownJournalError:
                self._vanished(wish)
                return
            if not isinstance(error, RowsTakenBackError):
                raise
            self._deliver(Lost(wish.read, error.kept, _place(wish), str(error)))

    def close(self) -> None:
        self._closing.set()
        self._pool.close(cancel=True)
        self._looks.join()
        for _, _, batches in self._going_on.values():
            batches.close()

    def _probe(self, wish: Probe) -> None:
        states: States = {}
        try:
            probe = self._found(wish)
            if probe.first_kept > wish.offset:
                if self._is_lost(wish, probe.lost_from(wish.offset), probe.first_kept):
                    return
                at, states = self._store.states(wish.journal, probe.first_kept)
                self._found(wish)  # still, so that they are its own
                if at != probe.first_kept:
                    raise LocalProtocolError(
                        f"{wish.journal} begins at {probe.first_kept}, and its store knows where "
                        f"producers stand at {at} only"
                    )
        except OffsetDroppedError:  # once more, just now
            self._probe(wish)
        except UnknownJournalError:
            self._vanished(wish)
        else:
            self._deliver(Probed(wish.read, probe.first_kept, probe.write_head, states))

    def _probe_together(self, wishes: list[Probe]) -> None:
        """Those that have more to tell than where they begin and end are probed by themselves."""
        found = self._store.probes({wish.journal for wish in wishes})
        for wish in wishes:
            probe = found.get(wish.journal)
            if probe is None or probe.identity != wish.identity or probe.first_kept > wish.offset:
                self._do(wish)
            else:
                self._found(wish, probe)
                self._deliver(Probed(wish.read, probe.first_kept, probe.write_head, {}))

    def _found(self, wish: Probe | Fetch | Replay, known: Found | None = None) -> Found:
        """What the journal holds. To who reads it, one that has its name now is not it."""
        found = known or self._store.probe(wish.journal)
        if found.identity != wish.identity:
            raise UnknownJournalError(wish.journal)
        with self._lock:
            self._missed.pop(wish.read, None)
        return found

    def _is_lost(self, wish: _Wish, begin: int, end: int) -> bool:
        """Whether rows [begin, end) are a reason to fail, which the Session is told."""
        if begin >= end:
            return False
        reason = f"offsets {begin} to {end - 1} were dropped by retention before they were read"
        if self._fails_on_loss(wish):
            self._deliver(Lost(wish.read, begin, end, reason))
            return True
        log.warning("%s: %s; reading goes on behind them", shown(wish.journal), reason)
        return False

    def _fails_on_loss(self, wish: _Wish) -> bool:
        return self._store.holding(wish.journal).fails_on_loss

    def _vanished(self, wish: _Wish) -> None:
        self._going_on.pop(wish.read, None)
        self._take_rest(wish.read)
        if self._fails_on_loss(wish):
            now = time.monotonic()
            with self._lock:
                since, _ = self._missed.get(wish.read, (now, None))
                if now - since < MISSED_SECONDS:
                    self._missed[wish.read] = since, wish
                    return
            at = _place(wish)
            reason = f"it was deleted, or made again; it was read up to offset {at}"
            self._deliver(Lost(wish.read, at, at, reason))
            return
        log.warning("%s was deleted, or made again; reading goes on", shown(wish.journal))
        self._deliver(Vanished(wish.read))

    def _fetch(self, wish: Fetch) -> None:
        rest, batches = self._reader(wish)
        try:
            found, rest, is_more = _some(rest, batches, wish.bytes_max)
            last = found[-1] if found else None
            came_with = None if last is None else last.probe
            head = self._found(wish, came_with).write_head
        except OffsetDroppedError:
            self._probe(Probe(wish.read, wish.journal, wish.offset, wish.identity))
            return
        except UnknownJournalError:
            batches.close()
            self._vanished(wish)
            return
        if last is not None and is_more:
            self._keep(wish.read, (last.next_offset, rest, batches))
        self._tell(wish, found, head)

    def _tell(self, wish: Fetch, found: list[JournalBatch], head: int) -> None:
        if found:
            self._deliver(Fetched(wish.read, tuple(found), head))
        elif not self._is_short(wish, head):
            with self._lock:
                self._waiting[wish.read] = time.monotonic() + GATHER_SECONDS, wish

    def _fetch_together(self, wishes: list[Fetch]) -> None:
        """What an earlier fetch left goes first. Whatever is not plain rows is found out, and told,
        by a fetch of its own."""
        self._fetched.update(wish.read for wish in wishes)
        spare = RESTS_BYTES_MAX // len(self._fetched)
        wanted: dict[str, tuple[int, int]] = {}
        asking: dict[str, tuple[Fetch, JournalBatch | None]] = {}
        for wish in wishes:
            rest = self._rest_at(wish)
            left = wish.bytes_max - (0 if rest is None else _bytes_of(rest))
            if rest is not None and rest.probe is not None and left <= wish.bytes_max // 2:
                self._settle(wish, rest, NextRows(None, rest.probe))
            elif wish.journal in asking:
                self._fetch_alone(wish, rest)
            else:
                begin = wish.offset if rest is None else rest.next_offset
                wanted[wish.journal] = begin, left + spare
                asking[wish.journal] = wish, rest
        try:
            found = self._store.read_together(wanted) if wanted else {}
        except PenstockError:
            found = {}
        for journal, (wish, rest) in asking.items():
            if journal in found:
                self._settle(wish, rest, found[journal])
            else:
                self._fetch_alone(wish, rest)

    def _settle(self, wish: Fetch, rest: JournalBatch | None, more: NextRows) -> None:
        try:
            head = self._found(wish, more.probe).write_head
        except UnknownJournalError:
            self._vanished(wish)
            return
        batches = [] if more.batch is None else [more.batch]
        found, rest, _ = _some(rest, iter(batches), wish.bytes_max)
        if rest is not None:
            with self._lock:
                self._keep_rest(wish.read, found[-1].next_offset, rest)
        self._tell(wish, found, head)

    def _fetch_alone(self, wish: Fetch, rest: JournalBatch | None) -> None:
        if rest is not None:
            with self._lock:
                self._keep_rest(wish.read, wish.offset, rest)
        self._do(wish)

    def _rest_at(self, wish: Fetch) -> JournalBatch | None:
        """What was read beyond the last fetch, from the offset on."""
        with self._lock:
            kept = self._going_on.pop(wish.read, None)
        if kept is not None:
            offset, rest, batches = kept
            batches.close()
        else:
            offset, rest = self._take_rest(wish.read)
        return rest if offset == wish.offset else None

    def _is_short(self, wish: Fetch, head: int) -> bool:
        """Whether the log lacks rows that were read, and a reader has to fail if it stays so."""
        with self._lock:
            if head >= wish.offset or not self._fails_on_loss(wish):
                self._short.pop(wish.read, None)
                return False
            now = time.monotonic()
            since = self._short.setdefault(wish.read, now)
            if now - since < SHORT_SECONDS:
                self._missed[wish.read] = since, wish
                return True
        reason = (
            f"the log ends at offset {head}, and it was read up to offset {wish.offset}: an "
            "unclean leader election took rows back"
        )
        self._deliver(Lost(wish.read, head, wish.offset, reason))
        return True

    def _reader(self, wish: Fetch) -> tuple[JournalBatch | None, _Batches]:
        """What is left of a batch, and the batches behind it, from the offset on."""
        with self._lock:
            kept = self._going_on.pop(wish.read, None)
        if kept is not None:
            offset, rest, batches = kept
            if offset == wish.offset:
                return rest, batches
            batches.close()
        offset, rest = self._take_rest(wish.read)
        if offset != wish.offset:
            rest = None
        begin = wish.offset if rest is None else rest.next_offset
        found = self._store.read(wish.journal, begin, fetch_bytes=wish.bytes_max)
        # Of a generator, which holds a file.
        return rest, cast("_Batches", found)

    def _keep(self, read: int, kept: tuple[int, JournalBatch | None, _Batches]) -> None:
        with self._lock:
            self._going_on[read] = kept
            if len(self._going_on) <= GOING_ON_MAX:
                return
            read, (offset, rest, batches) = self._going_on.popitem(last=False)
            # Under the same lock: the next fetch of this read may look for it right now.
            if rest is not None:
                self._keep_rest(read, offset, rest)
        batches.close()

    def _keep_rest(self, read: int, offset: int, rest: JournalBatch) -> None:
        size = rest.documents.nbytes
        if self._rests_bytes + size <= RESTS_BYTES_MAX:
            self._rests[read] = offset, rest.part(0, rest.rows, copied=True), size
            self._rests_bytes += size

    def _take_rest(self, read: int) -> tuple[int, JournalBatch | None]:
        with self._lock:
            if read not in self._rests:
                return -1, None
            offset, rest, size = self._rests.pop(read)
            self._rests_bytes -= size
            return offset, rest

    def _replay(self, wish: Replay) -> None:
        begin = wish.begin
        try:
            begin = max(begin, self._found(wish).first_kept)
            if self._is_lost(wish, wish.begin, min(begin, wish.end)):
                return
            batches = self._store.read(wish.journal, begin, wish.end)
            found, _, is_more = _some(None, batches, REPLAY_BYTES)
            self._found(wish)  # still, so that they are its own
        except OffsetDroppedError:  # just now
            self._replay(wish)
            return
        except UnknownJournalError:
            self._vanished(wish)
            return
        reached = min(found[-1].next_offset, wish.end) if is_more else wish.end
        self._deliver(ReplayFetched(wish.read, tuple(found), reached, min(begin, wish.end)))

    def _look(self) -> None:
        pause = LOOK_SECONDS
        while not self._closing.wait(pause):
            begun, worked = time.monotonic(), time.thread_time()
            self._ask_again()
            with self._lock:
                waiting = list(self._waiting.values())
            more = self._with_more([wish for since, wish in waiting if since <= begun])
            if more:
                # With one, all: what was written at one time is levelled together.
                more += self._with_more([wish for since, wish in waiting if since > begun])
            with self._lock:
                for wish in more:
                    del self._waiting[wish.read]
            if more:
                self.submit(*more)
            # Of a processor: what a broker that is gone takes until it answers costs nothing.
            pause = max(LOOK_SECONDS, 10 * (time.thread_time() - worked))

    def _ask_again(self) -> None:
        """For the journals that are missed."""
        with self._lock:
            missed = [(read, *each) for read, each in self._missed.items()]
            self._missed |= {read: (since, None) for read, since, _ in missed}
        again = [wish for _, _, wish in missed if wish is not None]
        if again:
            self.submit(*again)

    def _with_more(self, wishes: list[Fetch]) -> list[Fetch]:
        """Those whose journals hold more; or are gone, which the fetch finds out and says."""
        if self._closing.is_set() or not wishes:
            return []
        probes = self._store.probes({wish.journal for wish in wishes})

        def has_more(wish: Fetch) -> bool:
            probe = probes.get(wish.journal)
            if probe is None or probe.identity != wish.identity:
                return True
            return max(probe.write_head, probe.first_kept) > wish.offset

        return [wish for wish in wishes if has_more(wish)]


def _groups(wishes: list[Fetch]) -> Iterator[list[Fetch]]:
    """What one thread fetches at once, so that the others have something to do meanwhile."""
    group: list[Fetch] = []
    left = TOGETHER_BYTES
    for wish in wishes:
        if group and (wish.bytes_max > left or len(group) == TOGETHER_READS_MAX):
            yield group
            group, left = [], TOGETHER_BYTES
        group.append(wish)
        left -= wish.bytes_max
    if group:
        yield group


def _bytes_of(batch: JournalBatch) -> int:
    return int(batch.rows * row_bytes_of(batch.documents))


def _place(wish: _Wish) -> int:
    return wish.begin if isinstance(wish, Replay) else wish.offset


def _some(
    rest: JournalBatch | None, batches: Iterator[JournalBatch], bytes_max: int
) -> tuple[list[JournalBatch], JournalBatch | None, bool]:
    """The next rows, as many as fit but at least one if there is one; what is left of the last
    batch; and whether there may be more."""
    found: list[JournalBatch] = []
    left = float(bytes_max)
    for batch in itertools.chain([] if rest is None else [rest], batches):
        row_bytes = row_bytes_of(batch.documents)
        fitting = max(int(left // row_bytes), 0 if found else 1)
        if fitting < batch.rows:
            if fitting:
                found.append(batch.part(0, fitting, copied=True))
            return found, batch.part(fitting, batch.rows), True
        found.append(batch if batch is not rest else batch.part(0, batch.rows, copied=True))
        left -= batch.rows * row_bytes
        if left <= 0:
            return found, None, True
    return found, None, False
