"""How a shuffle goes, for people: a live table in a terminal, plain lines anywhere else."""

from __future__ import annotations

import datetime
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group
from rich.live import Live
from rich.text import Text

from penstock.cli import terminal
from penstock.cli.terminal import counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from rich.console import Console, RenderableType

    from penstock.cli.shuffle_run import Run
    from penstock.watch.state import QueueState

WINDOW_SECONDS: Final = 5.0
"""Rates are of the time just past."""
LINE_SECONDS: Final = 5.0
"""Between plain lines: a log is not a film."""
WAITS_SHOWN: Final = 2
"""Of what is stuck: the cause, and what follows from it."""
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class View:
    """A context in which the shuffle is shown."""

    def __init__(self, console: Console, lanes: Sequence[int]) -> None:
        """`lanes` has the priority of each."""
        self._console = console
        self._lanes = tuple(lanes)
        self._past: deque[tuple[float, int, dict[int, tuple[int, int]]]] = deque()
        self._said_at = time.monotonic()
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(
                Text("starting the members ..."),
                console=console,
                transient=True,
                refresh_per_second=4,
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(Text(text, "yellow"))

    def show(self, run: Run) -> None:
        self._remember(run)
        if self._live is not None:
            self._live.update(self._table(run))
        elif time.monotonic() - self._said_at >= LINE_SECONDS:
            self._said_at = time.monotonic()
            self._console.print(self._line(run))

    # What is shown

    def _table(self, run: Run) -> RenderableType:
        numbers = ("documents", "documents/s", "bytes/s", "waiting", "disk")
        made = terminal.table("member", *numbers, "", right=("member", *numbers))
        queues = _queues(run)
        for member, holding in run.position.holdings.items():
            queue = queues.get(member)
            documents, size = self._rates(member)
            made.add_row(
                str(member),
                f"{holding.documents:,}",
                f"{documents:,.0f}",
                sized(size),
                "" if queue is None else f"{queue.waiting_rows:,}",
                "" if queue is None else sized(queue.disk.size_bytes),
                "over its disk budget" if queue and queue.disk.overdrawn_bytes else "",
            )
        lines = [Text(f"{self._behind(run)}  ·  {self._epochs(run)}")]
        if run.restarts:
            lines.append(Text(counted(run.restarts, "restart"), "yellow"))
        waits = () if run.state is None else run.state.waits
        lines += [Text(wait.text, "yellow") for wait in waits[:WAITS_SHOWN] if wait.is_stall]
        hint = "Ctrl-C again stops at once" if run.stopping.is_set() else "Ctrl-C stops in order"
        return Group(made, *lines, Text(hint, "dim"))

    def _line(self, run: Run) -> str:
        rates = [self._rates(member) for member in run.position.holdings]
        parts = [
            self._epochs(run),
            f"{counted(run.position.documents, 'document')}, "
            f"{sum(documents for documents, _ in rates):,.0f}/s, "
            f"{sized(sum(size for _, size in rates))}/s",
            self._behind(run),
            f"{sized(sum(each.disk.size_bytes for each in _queues(run).values()))} of disk",
        ]
        if run.restarts:
            parts.append(counted(run.restarts, "restart"))
        stalls = [] if run.state is None else [each for each in run.state.waits if each.is_stall]
        parts += [each.text.removesuffix(".") for each in stalls[:1]]
        return "; ".join(parts)

    def _epochs(self, run: Run) -> str:
        if run.newest_seconds is None:
            return "no epoch yet"
        moment = datetime.datetime.fromtimestamp(run.newest_seconds).astimezone()
        return (
            f"epoch {run.position.last.number} at {moment:%H:%M:%S}, "
            f"{counted(run.epochs, 'epoch')}, {self._epoch_rate():.1f}/s"
        )

    def _behind(self, run: Run) -> str:
        """Rows that are in the journals and not yet in the queues."""
        if run.state is None or run.state.rows_behind is None:
            return "the members are starting"
        slices = [each for member in run.state.members for each in member.slices]
        behind = [
            sum(each.rows_behind for each in slices if each.lane == lane)
            for lane in range(len(self._lanes))
        ]
        if len(behind) == 1:
            return f"{counted(behind[0], 'row')} behind"
        lanes = zip(self._lanes, behind, strict=True)
        return "rows behind: " + ", ".join(f"{rows:,} of priority {lane}" for lane, rows in lanes)

    # Rates

    def _remember(self, run: Run) -> None:
        now = time.monotonic()
        held = {
            member: (each.documents, each.bytes) for member, each in run.position.holdings.items()
        }
        self._past.append((now, run.epochs, held))
        while len(self._past) > 2 and self._past[1][0] <= now - WINDOW_SECONDS:
            self._past.popleft()

    def _rates(self, member: int) -> tuple[float, float]:
        (begin, _, old), (end, _, new) = self._past[0], self._past[-1]
        seconds = max(end - begin, 1e-9)
        documents, size = (
            (now - before) / seconds for now, before in zip(new[member], old[member], strict=True)
        )
        return documents, size

    def _epoch_rate(self) -> float:
        (begin, old, _), (end, new, _) = self._past[0], self._past[-1]
        return (new - old) / max(end - begin, 1e-9)


def _queues(run: Run) -> dict[int, QueueState]:
    members = () if run.state is None else run.state.members
    return {each.member: each.queue for each in members if each.queue is not None}


def sized(count: float) -> str:
    """`1.5 MiB`."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:,.0f} {_UNITS[unit]}" if unit == 0 else f"{count:,.1f} {_UNITS[unit]}"


def holdings_table(members: Sequence[dict[str, Any]]) -> Any:
    """What each member holds, at the end."""
    numbers = ("member", "documents", "bytes", "vnodes")
    made = terminal.table(*numbers, right=numbers)
    for each in members:
        made.add_row(*(f"{each[name]:,}" for name in numbers))
    total = {name: sum(each[name] for each in members) for name in numbers[1:]}
    made.add_section()
    made.add_row("all", *(f"{value:,}" for value in total.values()))
    return made
