"""Settings of the sink: what is honoured, what makes no difference, what is refused."""

from __future__ import annotations

import pytest

from penstock.journal.kafka.errors import KafkaSettingError
from penstock.journal.kafka.producer_settings import NO_EFFECT, REFUSED, producer_settings
from penstock.journal.kafka.records.encoding import Compression

SERVERS = {"bootstrap.servers": "a:1"}


def test_what_a_producer_is_told() -> None:
    found = producer_settings(
        {
            **SERVERS,
            "kafka.compression.type": "ZSTD",
            "compression.zstd.level": "7",
            "compression.gzip.level": "1",
            "batch.size": "1000",
            "acks": "all",
            "transaction.timeout.ms": "5000",
            "request.timeout.ms": "7000",
        }
    )
    assert found.compression == Compression("zstd", 7)
    assert (found.batch_bytes, found.transaction_timeout_ms) == (1000, 5000)
    assert found.client.request_timeout_seconds == 7.0


@pytest.mark.parametrize("name", sorted(NO_EFFECT))
def test_what_cannot_change_what_is_written_is_accepted(name: str) -> None:
    assert producer_settings({**SERVERS, name: "1"}) == producer_settings(SERVERS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "x") for name in sorted(REFUSED)),
        ("acks", "1"),
        ("enable.idempotence", "false"),
        ("transaction.two.phase.commit.enable", "true"),
        ("compression.type", "brotli"),
        ("batch.size", "many"),
        ("batch.size", "0"),
        ("colour", "red"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(KafkaSettingError) as caught:
        producer_settings({**SERVERS, name: value})
    assert caught.value.setting == f"kafka.{name}"
