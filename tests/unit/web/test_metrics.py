"""Metrics: every figure of the state under its documented name, and nothing made up."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.web.feeds import Feeds
from penstock.web.metrics import METRICS, expose
from tests.unit.web.example_state import example_spark, example_state, put

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
SAMPLE = re.compile(r'^(\w+)\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\} (-?[\d.e+-]+)$')
NAME = re.compile(r"\bpenstock_[a-z_]+\b")


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """By the format's own grammar, and each family together below its head."""
    family = ""
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            family = line.split()[2]
        elif not line.startswith("#"):
            found = SAMPLE.match(line)
            assert found, line
            assert found[1] == family
            labels = dict(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', found[2]))
            yield found[1], labels, float(found[3])


def test_every_metric_comes_out_of_a_full_state(feed: Path) -> None:
    recovery = {"rows_done": 5, "rows_total": 20, "seconds_left": 3.5}
    put(feed, example_state(time.time(), recovery=recovery))
    put(feed, example_spark(), "spark.json")
    found = list(samples(expose(Feeds([feed]).look_at_all())))
    assert {name for name, _, _ in found} == set(METRICS)
    for name, labels, _ in found:
        assert set(labels) == {"feed", *METRICS[name].labels}
        assert labels["feed"] == "orders"
    by_name = {(name, *sorted(labels.items())): value for name, labels, value in found}
    assert len(by_name) == len(found), "two samples with the same labels"
    state = json.loads((feed / "state.json").read_text())
    figures = {name: value for name, _, value in found}
    assert figures["penstock_feed_up"] == 1
    assert figures["penstock_feed_written_timestamp_seconds"] == state["written"]
    assert figures["penstock_epoch"] == 812
    assert figures["penstock_recovery_left_seconds"] == 3.5
    assert figures["penstock_transaction_bytes"] == 484_000, "in two cohorts"
    oldest = min(wait["since"] for wait in state["waits"])
    assert figures["penstock_wait_since_timestamp_seconds"] == oldest
    assert figures["penstock_restarts_total"] == 1


def test_what_is_not_known_is_left_out(feed: Path) -> None:
    unknown = {"clock": None, "held_by": None}
    put(feed, example_state(time.time(), watermark=unknown, consumer=None, members=1, epochs=[]))
    names = {name for name, _, _ in samples(expose(Feeds([feed]).look_at_all()))}
    gone = {
        "penstock_watermark_timestamp_seconds",
        "penstock_consumer_epoch",
        "penstock_recovery_rows",
        "penstock_spark_batch",
        "penstock_epoch",
    }
    assert not names & gone


def test_labels_are_escaped(feed: Path) -> None:
    wait = {"kind": "idle", "who": 'a "b"\\c\nd', "since": 1.0, "is_stall": False}
    put(feed, example_state(time.time(), waits=[wait | {"text": "", "advice": None, "facts": {}}]))
    [(labels)] = [
        labels
        for name, labels, _ in samples(expose(Feeds([feed]).look_at_all()))
        if name == "penstock_wait_since_timestamp_seconds"
    ]
    assert labels["who"] == r"a \"b\"\\c\nd"


def test_the_documentation_has_exactly_these_names() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(penstock_\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|$", text, re.M)
    documented = {name: (kind, labels.strip(), words.strip()) for name, kind, labels, words in rows}
    expected = {
        name: (metric.kind, ", ".join(f"`{one}`" for one in metric.labels), metric.help)
        for name, metric in METRICS.items()
    }
    assert documented == expected
    assert set(NAME.findall(text)) <= set(METRICS)


def test_a_feed_that_ended_in_order_alarms_nobody(tmp_path: Path) -> None:
    put(tmp_path / "orders", example_state(phase="stopped", verdict="down"))
    found = {
        (name, labels.get("phase"))
        for name, labels, _ in samples(expose(Feeds([tmp_path]).look_at_all()))
    }
    assert ("penstock_feed_phase", "stopped") in found
    rules = (ROOT / "examples" / "observability" / "prometheus-alerts.yml").read_text()
    [rule] = re.findall(r"alert: PenstockFeedDown\n(?:\s+#.*\n)?\s+expr: (.*)\n", rules)
    assert rule.endswith('unless on (feed) penstock_feed_phase{phase="stopped"} == 1')


def test_examples_use_only_documented_names() -> None:
    files = [path for path in (ROOT / "examples" / "observability").iterdir() if path.is_file()]
    used: set[str] = set()
    for path in files:
        names = set(NAME.findall(path.read_text()))
        assert names <= set(METRICS), path.name
        used |= names
    assert {path.suffix for path in files} >= {".json", ".yml"}
    assert len(used) > 15
