"""Spans: made of what the state says is over, once each; nothing without the package."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from penstock.telemetry import FeedSpans, find_tracer
from tests.unit.web.example_state import example_spark, example_state, put

ROOT = Path(__file__).parents[2]
NOW = 1_800_000_000.0
FOLLOWED = """
import sys
from pathlib import Path
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
from penstock.telemetry import Tracing
folder = Path(sys.argv[1])
tracing = Tracing(lambda: [("orders", folder)])
sys.stdin.readline()
tracing.close()
print(sorted(span.name for span in exporter.get_finished_spans()))
"""
WITHOUT = """
import sys, threading
sys.modules["opentelemetry"] = None
from penstock.telemetry import Tracing, find_tracer
assert find_tracer() is None
tracing = Tracing(lambda: [])
assert threading.active_count() == 1
tracing.close()
"""


class Spans:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")

    def take(self, name: str = "") -> list[ReadableSpan]:
        """All that came since the last time, or those of one name."""
        found = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        return [span for span in found if not name or span.name == name]


@pytest.fixture
def spans() -> Spans:
    return Spans()


def tell(feed: FeedSpans, batches: bool = False, **changes: Any) -> None:
    feed.tell(example_state(NOW, **changes), example_spark(NOW)["batches"] if batches else [])


def test_an_epoch_is_a_span_with_its_phases(spans: Spans) -> None:
    feed = FeedSpans(spans.tracer, "orders", NOW - 1)
    tell(feed)
    capture, prepare, epoch = spans.take()
    assert [one.name.rpartition(".")[2] for one in (capture, prepare, epoch)] == [
        "capture", "prepare", "epoch",
    ]  # fmt: skip
    told = dict(epoch.attributes or {})
    assert (told["penstock.feed"], told["penstock.epoch"]) == ("orders", 812)
    assert (told["penstock.verdict"], told["penstock.aligned"]) == ("commit", True)
    assert "penstock.reason" not in told
    state = example_state(NOW)["epochs"][-1]
    assert epoch.start_time == round(state["began"] * 1e9)
    assert epoch.end_time == round((state["began"] + state["total_seconds"]) * 1e9)
    assert capture.parent is not None
    assert capture.parent.span_id == epoch.context.span_id
    assert capture.end_time == prepare.start_time
    tell(feed)
    assert spans.take() == [], "the same again"


def test_an_aborted_epoch_is_an_error_and_an_open_one_waits(spans: Spans) -> None:
    epochs = example_state(NOW)["epochs"]
    open_one = epochs[-1] | {"verdict": "open", "total_seconds": None}
    feed = FeedSpans(spans.tracer, "orders", NOW - 1)
    tell(feed, epochs=[open_one])
    assert spans.take() == []
    aborted = open_one | {"verdict": "abort", "total_seconds": 30.0, "reason": "too slow"}
    tell(feed, epochs=[aborted])
    [span] = spans.take("penstock.epoch")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "too slow")


def test_a_recovery_is_a_span_once_it_is_over(spans: Spans) -> None:
    feed = FeedSpans(spans.tracer, "orders", NOW - 1)
    event = {"at": NOW, "reason": "member 2 was killed", "member": 2, "recovered": None}
    tell(feed, epochs=[], restarts={"count": 1, "events": [event]})
    assert spans.take() == []
    tell(feed, epochs=[], restarts={"count": 1, "events": [event | {"recovered": NOW + 2}]})
    [span] = spans.take()
    assert span.name == "penstock.recovery"
    assert (span.start_time, span.end_time) == (round(NOW * 1e9), round((NOW + 2) * 1e9))
    assert dict(span.attributes or {})["penstock.reason"] == "member 2 was killed"


def test_a_batch_is_a_span(spans: Spans) -> None:
    feed = FeedSpans(spans.tracer, "orders", NOW - 2)
    tell(feed, batches=True, epochs=[])
    told = [dict(span.attributes or {}) for span in spans.take("penstock.batch")]
    assert [(one["penstock.batch"], one["penstock.epoch"]) for one in told] == [
        (399, 811), (400, 812),
    ]  # fmt: skip


def test_nobody_gets_spans_that_nobody_asked_for() -> None:
    assert find_tracer() is None
    subprocess.run([sys.executable, "-c", WITHOUT], check=True, timeout=60)


def test_a_program_with_a_provider_gets_them(tmp_path: Path) -> None:
    put(tmp_path, example_state(time.time() - 100))  # of before it follows
    process = subprocess.Popen(
        [sys.executable, "-c", FOLLOWED, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    # All of these begin long after the program did, whenever that is.
    put(
        tmp_path,
        example_state(
            time.time() + 1_000, epochs=example_state(time.time() + 1_000)["epochs"][-2:]
        ),
    )
    said, _ = process.communicate("\n", timeout=60)
    assert said.count("'penstock.epoch'") == 2
