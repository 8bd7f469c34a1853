"""The client settings that Spark's Kafka sink takes (`kafka.*`), as one value.

As in settings.py, every setting is honoured, without effect on what is written, or refused with a
reason. Addresses, timeouts and security are those of any client, and read there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.journal.kafka.errors import KafkaSettingError
from penstock.journal.kafka.records.encoding import CODECS, Compression
from penstock.journal.kafka.settings import INT_MAX, PREFIX, KafkaSettings, kafka_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.journal.kafka.records.encoding import CodecName

NO_EFFECT: Final = frozenset(
    {
        # A task has all rows of a batch before the first is sent: nothing lingers or is buffered.
        "linger.ms", "buffer.memory", "max.block.ms",
        # Order and repetition are those of an idempotent producer, whatever these say.
        "max.in.flight.requests.per.connection", "retries",
        # How Java's producer deals out rows without a key.
        "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms",
        "metadata.max.idle.ms",
    }
)  # fmt: skip
"""Accepted as Spark accepts them: they cannot change what is written."""

REFUSED: Final = {
    "transactional.id": "Penstock names it after the query, penstock-ID, so that a restarted query "
    "finds its own",
    "key.serializer": "keys are bytes or text; make them in the query",
    "value.serializer": "values are bytes or text; make them in the query, with to_json say",
    "partitioner.class": "rows go to partitions as Kafka's default partitioner has it; for "
    "another way make a column `partition` in the query",
    "interceptor.classes": "records are written without a Java producer, which would call them",
}
_ALWAYS: Final = {
    "acks": ("all", "-1"),
    "enable.idempotence": ("true",),
    "partitioner.ignore.keys": ("false",),
    "transaction.two.phase.commit.enable": ("false",),
}
"""Settings of which only these values can be honoured: transactions need them."""
_LEVELS: Final = {
    "compression.gzip.level": "gzip",
    "compression.lz4.level": "lz4",
    "compression.zstd.level": "zstd",
}
_NUMBERS: Final = {
    "batch.size": 1_000_000,
    "max.request.size": 1 << 20,
    "transaction.timeout.ms": 60_000,
    "delivery.timeout.ms": 120_000,
}
"""With the values that they have where nothing is said: Kafka's own, but for `batch.size`. A
request has one batch of each partition, and rows do not wait for more to come: so batches are as
large as topics take them by default."""
HONOURED: Final = frozenset({"compression.type", *_ALWAYS, *_LEVELS, *_NUMBERS})


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """All that a producer is told. Its repr shows no secret; its pickle has them."""

    client: KafkaSettings
    compression: Compression
    batch_bytes: int
    request_bytes_max: int
    """Of one record: the limit that Java's producer has."""
    transaction_timeout_ms: int
    delivery_timeout_seconds: float
    """How long a request is repeated before it is given up."""


def is_of_producers(name: str) -> bool:
    """Whether it is a setting that only producers have, by its name without `kafka.`."""
    return name in HONOURED or name in NO_EFFECT or name in REFUSED


def producer_settings(options: Mapping[str, str]) -> ProducerSettings:
    """Reads options by Kafka's own names, each with or without the prefix `kafka.`. Raises
    `KafkaSettingError` for the first one that cannot be honoured."""
    given = {name.lower().removeprefix(PREFIX): value for name, value in options.items()}
    own = {name: given.pop(name) for name in list(given) if name in HONOURED}
    for name in list(given):
        if name in REFUSED:
            raise KafkaSettingError(PREFIX + name, REFUSED[name])
        if name in NO_EFFECT:
            del given[name]
    for name, allowed in _ALWAYS.items():
        if own.get(name, allowed[0]).lower() not in allowed:
            reason = f"it can only be {allowed[0]!r}: a batch is written in a transaction"
            raise KafkaSettingError(PREFIX + name, reason)
    numbers = {name: _number(own, name, default) for name, default in _NUMBERS.items()}
    return ProducerSettings(
        client=kafka_settings(given),
        compression=_compression(own),
        batch_bytes=numbers["batch.size"],
        request_bytes_max=numbers["max.request.size"],
        transaction_timeout_ms=numbers["transaction.timeout.ms"],
        delivery_timeout_seconds=numbers["delivery.timeout.ms"] / 1000,
    )


def _compression(own: Mapping[str, str]) -> Compression:
    name = own.get("compression.type", "none").lower()
    if name not in CODECS:
        reason = f"it is {name!r}, not one of {', '.join(CODECS)}"
        raise KafkaSettingError(f"{PREFIX}compression.type", reason)
    codec: CodecName = name  # type: ignore[assignment] # it was checked
    for setting, of_codec in _LEVELS.items():
        if of_codec == name and setting in own:
            return Compression(codec, _number(own, setting, 0, least=-INT_MAX))
    return Compression(codec)


def _number(own: Mapping[str, str], name: str, default: int, least: int = 1) -> int:
    text = own.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise KafkaSettingError(PREFIX + name, f"{text!r} is not a whole number") from None
    if not least <= value <= INT_MAX:
        raise KafkaSettingError(PREFIX + name, f"{value} is not between {least} and {INT_MAX}")
    return value
