"""The last ten minutes of a feed, a point a second. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.watch.state import HISTORY_SECONDS, HistoryState


@dataclass(frozen=True, slots=True)
class Point:
    rows_per_second: float | None
    rows_behind: int | None
    watermark_lag_seconds: float | None
    disk_bytes: int | None


class History:
    def __init__(self) -> None:
        self._points: deque[tuple[float, Point]] = deque(maxlen=HISTORY_SECONDS)

    def add(self, now: float, point: Point) -> None:
        """However often this is called, one a second is kept."""
        if not self._points or int(now) != int(self._points[-1][0]):
            self._points.append((now, point))

    def state(self) -> HistoryState:
        return HistoryState(
            tuple(at for at, _ in self._points),
            tuple(point.rows_per_second for _, point in self._points),
            tuple(point.rows_behind for _, point in self._points),
            tuple(point.watermark_lag_seconds for _, point in self._points),
            tuple(point.disk_bytes for _, point in self._points),
        )
