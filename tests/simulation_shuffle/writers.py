"""Those who write: documents, transactions over several journals, rollbacks and repetitions.

A writer is one producer after another. What an earlier one left behind is settled by somebody: a
decided transaction is acknowledged where it is not yet, an open one rolled back, or left open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.ids import CLOCK_FLOOR, CLOCK_TICK, Kind, Producer
from penstock.sequence import SequenceFaultError, sequence
from tests.simulation.choices import Menu, OptionT, evenly, seldom
from tests.simulation_shuffle.clocks import LIARS, LIES
from tests.simulation_shuffle.journals import DUPLICATES, Row, Transaction, clock_at

if TYPE_CHECKING:
    from tests.simulation.world import World
    from tests.simulation_shuffle.journals import Journal, Journals

JOURNAL_SECONDS: Final = 0.15
_ACTIONS: Final = Menu(
    (30, "outside"),
    (35, "continue"),
    (20, "commit"),
    (8, "roll back"),
    (10, "repeat"),
    (3, "restart"),
    (20, "nothing"),
)
_PAUSES: Final = evenly(0.15, 0.03, 0.4)
_COUNTS: Final = evenly(1, 2, 4)
_SIZES: Final = Menu((6, 8), (3, 200), (1, 900))
_SKEWS: Final = Menu((4, 0.0), (1, -0.4), (1, 0.15))
_LAGS: Final = Menu((10, 0.0), (2, 0.1), (1, 0.8))
_REPEATED: Final = evenly(1, 2, 4, 8)
_SEVERAL: Final = seldom(500)
_ONE_BY_ONE: Final = seldom(400)
_DEEP: Final = seldom(300)
_LEFT_OPEN: Final = seldom(250)
_SETTLED_AFTER: Final = evenly(0.1, 0.6, 2.0)


class Life:
    """One producer: where it stands in each journal, and its transaction."""

    def __init__(self, number: int) -> None:
        first = 0x81 if number % 2 else 0x01  # as signed numbers some sort before the others
        self.producer = Producer(bytes([first, 0, 0, 0, 0, number])).int64
        self.clock = 0
        self.states: dict[str, tuple[int, int]] = {}
        """By what frontiers call the journal."""
        self.touched: dict[str, str] = {}
        """By name, what frontiers call the journal that has the last of the transaction."""
        self.unacknowledged: list[str] = []
        self.decided: Transaction | None = None


class Writer:
    def __init__(self, world: World, journals: Journals, name: str, places: list[str]) -> None:
        self.name = name
        self._world = world
        self._journals = journals
        self._places = evenly(*places)
        self._skew = self._choose("skew", _SKEWS)
        self._lies = self._choose("lies", LIARS)
        self._lags = {place: self._choose("lag", _LAGS) for place in places}
        self._life = self._new_life()
        self._left: list[Life] = []
        """To be settled."""
        self._stopped = False
        self._wait()

    def calm(self) -> None:
        """Ends what is under way, and writes no more."""
        self._stopped = True
        for life in [*self._left, self._life]:
            self._settle(life, commit=life is self._life)
        for place in self._places.options:
            if place in self._journals.by_name:
                _show_all(self._journals.by_name[place])

    def _choose(self, what: str, menu: Menu[OptionT]) -> OptionT:
        return self._world.choices.choose(f"{self.name} {what}", menu)

    def _new_life(self) -> Life:
        self._world.counts["producers"] += 1
        return Life(self._world.counts["producers"])

    def _wait(self) -> None:
        self._world.post(self._choose("pauses", _PAUSES), self._act)

    def _act(self) -> None:
        if self._stopped:
            return
        life = self._life
        if life.unacknowledged:
            self._acknowledge(life, 1)
        else:
            match self._choose("actions", _ACTIONS):
                case "outside" if not life.touched:
                    self._write(Kind.OUTSIDE)
                case "continue" | "outside":
                    self._write(Kind.CONTINUE)
                    if self._choose("several", _SEVERAL):
                        self._write(Kind.CONTINUE)
                case "commit" if life.touched:
                    self._decide(life)
                    one_by_one = self._choose("one by one", _ONE_BY_ONE)
                    self._acknowledge(life, 1 if one_by_one else len(life.unacknowledged))
                case "roll back" if life.touched:
                    self._roll_back(life, deep=self._choose("deep", _DEEP))
                case "repeat":
                    self._repeat()
                case "restart":
                    self._restart()
                case _:
                    pass
        self._wait()

    def _write(self, kind: Kind) -> None:
        life, name = self._life, self._place()
        rows = []
        for _ in range(self._choose("counts", _COUNTS)):
            self._world.counts["documents"] += 1
            value = self._world.counts["documents"]
            size_bytes = self._choose("sizes", _SIZES)
            rows.append(Row(life.producer, self._tick(life), kind, value, size_bytes))
        journal = self._append(life, name, rows)
        if kind is Kind.CONTINUE:
            life.touched[name] = journal.known_as

    def _place(self) -> str:
        """Journals come to be one after another."""
        name = self._choose("places", self._places)
        known = 1 + int(self._world.now / JOURNAL_SECONDS)
        return self._places.options[self._places.options.index(name) % known]

    def _tick(self, life: Life) -> int:
        skew = self._choose("lie", LIES) if self._lies else self._skew
        self._world.counts["clocks that lie"] += self._lies
        life.clock = max(life.clock + CLOCK_TICK, clock_at(self._world.now + skew))
        return life.clock

    def _decide(self, life: Life) -> None:
        life.unacknowledged = sorted(life.touched)
        names = tuple(life.unacknowledged)
        homes = tuple(life.touched[name] for name in names)
        for home in homes:  # as a commit does: its documents are durable before it is decided
            _show_all(self._journals.all[home])
        life.decided = Transaction(life.producer, self._tick(life), names, homes)
        life.touched = {}
        self._journals.transactions.append(life.decided)
        self._world.counts["transactions"] += 1

    def _acknowledge(self, life: Life, count: int) -> None:
        names, life.unacknowledged = life.unacknowledged[:count], life.unacknowledged[count:]
        for name in names:
            assert life.decided is not None
            others = tuple(other for other in life.decided.journals if other != name)
            ack = Row(life.producer, life.decided.clock, Kind.ACK, hints=others)
            self._append(life, name, [ack])

    def _roll_back(self, life: Life, *, deep: bool) -> None:
        self._world.counts["rollbacks"] += 1
        for name in life.touched:
            last_commit, _ = life.states.get(self._journals.open(name).known_as, (CLOCK_FLOOR, 0))
            clock = last_commit - CLOCK_TICK if deep and last_commit > CLOCK_TICK else last_commit
            self._append(life, name, [Row(life.producer, clock, Kind.ACK)])
        life.touched = {}

    def _repeat(self) -> None:
        """The last of its rows in a journal once more, as far as they pass for duplicates."""
        life, name = self._life, self._place()
        journal = self._journals.by_name.get(name)
        if journal is None or journal.is_gone or journal.known_as not in life.states:
            return
        state = life.states[journal.known_as]
        own = [row for row in journal.rows if row.producer == life.producer]
        rows = own[-self._choose("repeated", _REPEATED) :]
        while rows and not all(_is_duplicate(row, state) for row in rows):
            rows = rows[1:]
        if rows:
            self._world.counts["repetitions"] += 1
            self._append(life, name, rows)

    def _restart(self) -> None:
        self._world.counts["restarts of producers"] += 1
        left, self._life = self._life, self._new_life()
        is_left_open = self._choose("left open", _LEFT_OPEN)
        if left.touched and is_left_open:
            self._world.counts["spans left open"] += 1
            return
        self._left.append(left)
        self._world.post(self._choose("settled after", _SETTLED_AFTER), lambda: self._settle(left))

    def _settle(self, life: Life, *, commit: bool = False) -> None:
        if commit and life.touched:
            self._decide(life)
        self._acknowledge(life, len(life.unacknowledged))
        self._roll_back(life, deep=False)

    def _append(self, life: Life, name: str, rows: list[Row]) -> Journal:
        known = self._journals.open(name).known_as
        for row in rows:
            last_commit, max_continue = life.states.get(known, (CLOCK_FLOOR, 0))
            _, *state = sequence(row.kind, row.clock, last_commit, max_continue)
            life.states[known] = (state[0], state[1])
        journal = self._journals.append(name, rows)
        if self._world.trace is not None:
            shown = ", ".join(f"{row.kind.name} {row.value} {row.clock % 10**9}" for row in rows)
            self._world.tell(self.name, f"{life.producer >> 16 & 255} writes {name}: {shown}")
        self._world.post(self._lags[name], lambda: _show_all(journal))
        return journal


def _show_all(journal: Journal) -> None:
    journal.head = len(journal.rows)


def _is_duplicate(row: Row, state: tuple[int, int]) -> bool:
    try:
        return sequence(row.kind, row.clock, *state)[0] in DUPLICATES
    except SequenceFaultError:
        return False
