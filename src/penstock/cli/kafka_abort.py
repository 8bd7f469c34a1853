"""Ending a transaction of a Kafka producer by hand."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, cast

import click

from penstock.cli.options import open_readable
from penstock.journal.kafka.aborting import chosen

if TYPE_CHECKING:
    from penstock.journal.kafka.aborting import OpenInPartitions
    from penstock.journal.kafka.store import KafkaStore


def abort_in_kafka(store_url: str | None, producer: str, *, yes: bool, as_json: bool) -> None:
    with open_readable(store_url) as opened:
        store = cast("KafkaStore", opened)
        seen = chosen(store.opened(), producer)
        if not yes:
            click.confirm(_question(seen), abort=True, err=True)
        store.abort(seen)
    if as_json:
        click.echo(json.dumps(as_data(seen), indent=2))
    else:
        click.echo(f"aborted: {described(seen)}")


def described(seen: OpenInPartitions) -> str:
    """A transaction in a sentence."""
    where = ", ".join(sorted(map(str, seen.partitions)))
    if seen.described is None:
        return (
            f"the transaction of producer {seen.producer_id} in {where}, which hangs: no "
            "coordinator knows of it"
        )
    began = datetime.datetime.fromtimestamp((seen.described.started_ms or 0) / 1000, datetime.UTC)
    return (
        f"the transaction of {seen.described.transactional_id!r} (producer {seen.producer_id}) in "
        f"{where}, open since {began:%Y-%m-%d %H:%M:%S} UTC"
    )


def as_data(seen: OpenInPartitions) -> dict[str, object]:
    return {
        "producer_id": seen.producer_id,
        "transactional_id": None if seen.described is None else seen.described.transactional_id,
        "hangs": seen.described is None,
        "partitions": sorted(map(str, seen.partitions)),
    }


def _question(seen: OpenInPartitions) -> str:
    fenced = "" if seen.described is None else ", and its producer is fenced until it begins anew"
    return f"What was written in {described(seen)}, is lost{fenced}. Go on?"
