"""Spans of OpenTelemetry for epochs, recoveries and Spark's batches: one more view of the state.

The package opentelemetry-api is optional: without it, or where a program has set up no provider of
traces, nothing is done. Spans are made of what is over, with the times that the state has; so they
come a second late, and cost the feed nothing.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PenstockError
from penstock.threads import supervised
from penstock.watch.encoding import plain
from penstock.watch.loading import STATE_NAME, load_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from opentelemetry.trace import Tracer

LOOK_SECONDS: Final = 1.0
"""The state keeps the last hundred epochs: with a second between two looks, none is missed."""
_NANOSECONDS: Final = 1_000_000_000


def find_tracer() -> Tracer | None:
    """None: nobody wants spans here."""
    try:
        from opentelemetry import trace  # noqa: PLC0415 - Penstock works without it
    except ImportError:
        return None
    if isinstance(
        trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider
    ):
        return None
    return trace.get_tracer("penstock")


class FeedSpans:
    """Of one feed. Makes a span of whatever is over since the last look."""

    def __init__(self, tracer: Tracer, feed: str, since: float) -> None:
        self._tracer = tracer
        self._feed = feed
        self._epochs = self._recoveries = self._batches = since
        """When what was told last began."""

    def tell(self, state: Mapping[str, Any], batches: Iterable[Mapping[str, Any]]) -> None:
        for epoch in state["epochs"]:
            if epoch["verdict"] != "open" and epoch["began"] > self._epochs:
                self._epochs = epoch["began"]
                self._epoch(epoch)
        for event in state["restarts"]["events"]:
            if event["recovered"] is not None and event["at"] > self._recoveries:
                self._recoveries = event["at"]
                about = {"reason": event["reason"], "member": event["member"]}
                self._span("penstock.recovery", event["at"], event["recovered"], about)
        for batch in batches:
            if batch["at"] > self._batches:
                self._batches = batch["at"]
                took = batch["milliseconds"].get("triggerExecution", 0) / 1000
                about = {name: batch[name] for name in ("batch", "rows", "epoch")}
                self._span("penstock.batch", batch["at"], batch["at"] + took, about)

    def _epoch(self, epoch: Mapping[str, Any]) -> None:
        names = ("verdict", "aligned", "last_member", "rows", "reason")
        about = {"epoch": epoch["number"]} | {name: epoch[name] for name in names}
        began = epoch["began"]
        ended = began + (epoch["total_seconds"] or 0.0)
        failed = (epoch["reason"] or "aborted") if epoch["verdict"] == "abort" else None
        parts = [("capture", epoch["captured_seconds"]), ("prepare", epoch["prepared_seconds"])]
        self._span("penstock.epoch", began, ended, about, failed=failed, parts=parts)

    def _span(
        self,
        name: str,
        began: float,
        ended: float,
        about: Mapping[str, Any],
        *,
        failed: str | None = None,
        parts: Iterable[tuple[str, float | None]] = (),
    ) -> None:
        from opentelemetry import trace  # noqa: PLC0415 - see find_tracer

        known = {f"penstock.{key}": value for key, value in about.items() if value is not None}
        known["penstock.feed"] = self._feed
        span = self._tracer.start_span(name, start_time=_stamp(began), attributes=known)
        if failed is not None:
            span.set_status(trace.Status(trace.StatusCode.ERROR, failed))
        within = trace.set_span_in_context(span)
        at = began
        for part, seconds in parts:
            if seconds is not None:
                inner = self._tracer.start_span(
                    f"{name}.{part}", context=within, start_time=_stamp(at)
                )
                at = max(at, began + seconds)
                inner.end(_stamp(at))
        span.end(_stamp(max(ended, at)))


def _stamp(seconds: float) -> int:
    return round(seconds * _NANOSECONDS)


class Tracing:
    """Follows feeds in a thread of its own, from its making to `close`; none without a tracer."""

    def __init__(self, folders: Callable[[], Iterable[tuple[str, Path]]]) -> None:
        """`folders` gives the feeds that there are now, by name."""
        self._folders = folders
        self._tracer = find_tracer()
        self._since = time.time()
        self._spans: dict[Path, FeedSpans] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if self._tracer is not None:
            self._thread = supervised("traces", self._run, until=self._stopping.is_set)
            self._thread.start()

    def close(self) -> None:
        """With a last look: what has just ended is told, too."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            self._look()
        self._look()

    def _look(self) -> None:
        if self._tracer is None:
            return
        for feed, folder in self._folders():
            if folder not in self._spans:
                self._spans[folder] = FeedSpans(self._tracer, feed, self._since)
            try:
                state = json.loads((folder / STATE_NAME).read_bytes())
                self._spans[folder].tell(state, [plain(each) for each in load_spark(folder)])
            except (OSError, ValueError, KeyError, TypeError, PenstockError):
                continue  # not there, or not whole: others say so to people
