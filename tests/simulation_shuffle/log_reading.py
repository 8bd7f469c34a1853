"""The reader of a transaction log, played: it takes its time, and others write meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.shuffle.session.log_matching import LogRead, MarkersFound
from penstock.shuffle.session.log_reading import found_markers
from tests.simulation.choices import Menu

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.journal.transaction_log import TransactionLog
    from penstock.shuffle.session.log_matching import FindMarkers
    from tests.simulation.world import Process
    from tests.simulation_shuffle.setting import Setting

IDLE_SECONDS: Final = 0.5
_DELAYS: Final = Menu((6, 0.005), (2, 0.05), (1, 0.5))


class PlayedLogReader:
    """As `session/log_reading.py` has it."""

    def __init__(
        self,
        process: Process,
        setting: Setting,
        log: TransactionLog,
        tell: Callable[[LogRead | MarkersFound], None],
    ) -> None:
        self._process, self._setting, self._log, self._tell = process, setting, log, tell
        self._is_wanted = self._looks = False
        self._is_reading = False
        self._process.after(0.0, self._idle, "reads log")

    def want(self, *, looks: bool) -> None:
        self._is_wanted = True
        self._looks |= looks
        self._begin()

    def find(self, sought: FindMarkers) -> None:
        """It takes its time for that, too."""
        self._process.world.counts["markers read again"] += 1
        store: Any = self._setting.journals
        delay = self._process.world.choices.choose("markers take", _DELAYS)
        self._process.after(
            delay, lambda: self._tell(found_markers(store, sought)), "markers found"
        )

    def _idle(self) -> None:
        self._is_wanted = True
        self._begin()
        self._process.after(IDLE_SECONDS, self._idle, "reads log")

    def _begin(self) -> None:
        if self._is_reading or not self._is_wanted:
            return
        self._is_reading = True
        delay = self._process.world.choices.choose("log takes", _DELAYS)
        self._process.after(delay, self._read, "reads log")

    def _read(self) -> None:
        looks, self._is_wanted, self._looks = self._looks, False, False
        self._process.world.counts["looks at the log"] += looks
        read = self._look() if looks else LogRead(tuple(self._log.read()))
        delay = self._process.world.choices.choose("log is told", _DELAYS)
        self._process.after(delay, lambda: self._told(read), "log read")

    def _told(self, read: LogRead) -> None:
        self._is_reading = False
        self._tell(read)
        self._begin()

    def _look(self) -> LogRead:
        entries = tuple(self._log.read())
        journals = self._listed()
        look = self._log.look(journals)
        if self._listed() != journals:
            return LogRead((*entries, *look.before, *look.around, *look.later))
        return LogRead(entries, look)

    def _listed(self) -> list[str]:
        collections = {binding.collection for binding in self._setting.plan.bindings}
        return sorted(
            name for one in collections for name in self._setting.journals.of_collection(one)
        )
