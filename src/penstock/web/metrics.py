"""The state of feeds as Prometheus reads it. docs/metrics.md has the same names.

Nothing is computed here: a figure is in the state, or it is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.web.feeds import Look

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: str
    labels: tuple[str, ...]
    """Beside `feed`."""
    help: str


_TABLE: Final = """
penstock_feed_up                            gauge   -                      1 while a process leads the feed
penstock_feed_verdict                       gauge   verdict                1 for what the feed is now: healthy, waiting, stuck or down
penstock_feed_phase                         gauge   phase                  1 for the phase that the feed is in
penstock_feed_started_timestamp_seconds     gauge   -                      when the process that leads began
penstock_feed_written_timestamp_seconds     gauge   -                      when the feed said all this
penstock_restarts_total                     counter -                      how often members began anew since the process began
penstock_wait_since_timestamp_seconds       gauge   kind,who,stall         since when somebody waits, and for what
penstock_journals                           gauge   -                      journals that are read
penstock_journal_rows_behind                gauge   journal,binding        rows to be read; of the journals furthest behind, up to 100
penstock_journal_read_offset                gauge   journal,binding        up to where it is read; its rate() is rows a second
penstock_journal_end_offset                 gauge   journal,binding        where it ends
penstock_member_heard_timestamp_seconds     gauge   member                 when a member was heard last
penstock_member_vnodes                      gauge   member                 vnodes that a member owns
penstock_slice_rows_read_total              counter member,lane            rows read from journals
penstock_slice_rows_behind                  gauge   member,lane            rows of journals that are not read yet
penstock_slice_buffered_bytes               gauge   member,lane            read, and not sent yet
penstock_slice_credit_free_ratio            gauge   member,lane,to         how much of its credit at a Queue a Slice has left
penstock_queue_rows_total                   counter member                 rows that a Queue has stored
penstock_queue_waiting_rows                 gauge   member                 rows that wait in a Queue for the merge
penstock_queue_disk_bytes                   gauge   member                 what a Queue takes on disk
penstock_queue_disk_limit_bytes             gauge   member                 its disk budget
penstock_queue_disk_overdrawn_bytes         gauge   member                 how far it is over its budget
penstock_queue_disk_pressed                 gauge   member                 1 while the budget holds a Queue up
penstock_transactions_open                  gauge   -                      open transactions that have stored rows
penstock_transaction_since_timestamp_seconds gauge  producer,holds_up      since when a transaction is open; the oldest, up to 100
penstock_transaction_bytes                  gauge   producer               what it holds
penstock_epoch                              gauge   -                      the newest epoch that is decided
penstock_epoch_committed                    gauge   -                      1 if that one was committed
penstock_epoch_seconds                      gauge   phase                  from its begin until it was captured, prepared, over (total)
penstock_epoch_rows                         gauge   -                      rows in it
penstock_consumer_epoch                     gauge   -                      the epoch that the consumer is done with
penstock_consumer_newest_epoch              gauge   -                      the newest one that it could read
penstock_watermark_timestamp_seconds        gauge   -                      how far in time reading has come; open transactions may bring earlier documents
penstock_recovery_rows_done                 gauge   -                      rows read again; only while a recovery is under way
penstock_recovery_rows                      gauge   -                      rows that it has to read again
penstock_recovery_left_seconds              gauge   -                      how long that will take
penstock_spark_batch                        gauge   -                      the number of Spark's last batch
penstock_spark_batch_rows                   gauge   -                      rows in it
penstock_spark_batch_seconds                gauge   step                   how long it took, by Spark's own steps
"""  # noqa: E501 - a table


def _parsed(table: str) -> dict[str, Metric]:
    metrics = {}
    for line in table.strip().splitlines():
        name, kind, labels, words = line.split(None, 3)
        names = () if labels == "-" else tuple(labels.split(","))
        metrics[name] = Metric(name, kind, names, words)
    return metrics


METRICS: Final = _parsed(_TABLE)

_Sample = tuple[str, tuple[object, ...], Any]


def expose(looks: Iterable[Look]) -> str:
    """Of all feeds, metric by metric, as the format wants it."""
    lines: dict[str, list[str]] = {name: [] for name in METRICS}
    for look in looks:
        for (name, values), figure in _merged(_samples(look)).items():
            pairs = [("feed", look.name), *zip(METRICS[name].labels, values, strict=True)]
            labels = ",".join(f'{label}="{_escaped(value)}"' for label, value in pairs)
            lines[name].append(f"{name}{{{labels}}} {_number(figure)}")
    text = []
    for name, samples in lines.items():
        if samples:
            metric = METRICS[name]
            text += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}", *samples]
    return "\n".join(text) + "\n" if text else ""


def _merged(samples: Iterable[_Sample]) -> dict[tuple[str, tuple[object, ...]], Any]:
    """One for each name and labels, as the format demands: of several waits of somebody, or parts
    of a transaction in several cohorts, the oldest moment, and the sum of anything else."""
    merged: dict[tuple[str, tuple[object, ...]], Any] = {}
    for name, values, figure in samples:
        known = merged.get((name, values))
        if known is None:
            merged[name, values] = figure
        elif figure is not None:
            is_moment = name.endswith("_timestamp_seconds")
            merged[name, values] = min(known, figure) if is_moment else known + figure
    return {key: figure for key, figure in merged.items() if figure is not None}


def _samples(look: Look) -> Iterator[_Sample]:
    yield "penstock_feed_up", (), look.is_alive
    if look.batches:
        yield from _of_spark(look.batches[-1])
    state = look.state
    if state is None:
        return
    yield "penstock_feed_verdict", (state.get("verdict"),), 1
    yield "penstock_feed_phase", (state.get("phase"),), 1
    yield "penstock_feed_started_timestamp_seconds", (), state.get("started")
    yield "penstock_feed_written_timestamp_seconds", (), state.get("written")
    yield "penstock_restarts_total", (), _part(state, "restarts").get("count")
    for wait in _list(state, "waits"):
        which = (wait.get("kind"), wait.get("who"), wait.get("is_stall"))
        yield "penstock_wait_since_timestamp_seconds", which, wait.get("since")
    journals = _part(state, "journals")
    yield "penstock_journals", (), journals.get("count")
    for one in _list(journals, "shown"):
        labels = (one.get("journal"), one.get("binding"))
        yield "penstock_journal_rows_behind", labels, one.get("rows_behind")
        yield "penstock_journal_read_offset", labels, one.get("offset")
        yield "penstock_journal_end_offset", labels, one.get("head")
    for member in _list(state, "members"):
        yield from _of_member(member)
    transactions = _part(state, "transactions")
    yield "penstock_transactions_open", (), transactions.get("count")
    for one in _list(transactions, "shown"):
        since, holds_up = one.get("since"), one.get("holds_up")
        producer = one.get("producer")
        yield "penstock_transaction_since_timestamp_seconds", (producer, holds_up), since
        yield "penstock_transaction_bytes", (producer,), one.get("bytes")
    yield from _of_epochs(_list(state, "epochs"))
    consumer = _part(state, "consumer")
    yield "penstock_consumer_epoch", (), consumer.get("consumed")
    yield "penstock_consumer_newest_epoch", (), consumer.get("newest")
    yield "penstock_watermark_timestamp_seconds", (), _part(state, "watermark").get("clock")
    recovery = _part(state, "recovery")
    yield "penstock_recovery_rows_done", (), recovery.get("rows_done")
    yield "penstock_recovery_rows", (), recovery.get("rows_total")
    yield "penstock_recovery_left_seconds", (), recovery.get("seconds_left")


def _of_member(member: dict[str, Any]) -> Iterator[_Sample]:
    number = member.get("member")
    yield "penstock_member_heard_timestamp_seconds", (number,), member.get("heard")
    yield "penstock_member_vnodes", (number,), member.get("vnodes")
    for one in _list(member, "slices"):
        labels = (number, one.get("lane"))
        yield "penstock_slice_rows_read_total", labels, one.get("rows_read")
        yield "penstock_slice_rows_behind", labels, one.get("rows_behind")
        yield "penstock_slice_buffered_bytes", labels, one.get("buffered_bytes")
        for to in _list(one, "to"):
            target = (*labels, to.get("member"))
            yield "penstock_slice_credit_free_ratio", target, to.get("credit_free")
    queue = _part(member, "queue")
    yield "penstock_queue_rows_total", (number,), queue.get("rows")
    yield "penstock_queue_waiting_rows", (number,), queue.get("waiting_rows")
    disk = _part(queue, "disk")
    yield "penstock_queue_disk_bytes", (number,), disk.get("size_bytes")
    yield "penstock_queue_disk_limit_bytes", (number,), disk.get("limit_bytes")
    yield "penstock_queue_disk_overdrawn_bytes", (number,), disk.get("overdrawn_bytes")
    yield "penstock_queue_disk_pressed", (number,), disk.get("is_pressed")


def _of_epochs(epochs: list[dict[str, Any]]) -> Iterator[_Sample]:
    decided = [epoch for epoch in epochs if epoch.get("verdict") in ("commit", "abort")]
    if not decided:
        return
    newest = decided[-1]
    yield "penstock_epoch", (), newest.get("number")
    yield "penstock_epoch_committed", (), newest.get("verdict") == "commit"
    for phase in ("captured", "prepared", "total"):
        yield "penstock_epoch_seconds", (phase,), newest.get(f"{phase}_seconds")
    yield "penstock_epoch_rows", (), newest.get("rows")


def _of_spark(batch: dict[str, Any]) -> Iterator[_Sample]:
    yield "penstock_spark_batch", (), batch.get("batch")
    yield "penstock_spark_batch_rows", (), batch.get("rows")
    for step, milliseconds in sorted(_part(batch, "milliseconds").items()):
        yield "penstock_spark_batch_seconds", (step,), milliseconds / 1000


def _part(of: dict[str, Any], name: str) -> dict[str, Any]:
    found = of.get(name)
    return found if isinstance(found, dict) else {}


def _list(of: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = of.get(name)
    return found if isinstance(found, list) else []


def _number(figure: object) -> str:
    if isinstance(figure, bool):
        return "1" if figure else "0"
    return repr(figure)


def _escaped(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
