"""Tests of Kafka are skipped where its jars cannot be had, and never in CI."""

from __future__ import annotations

import pytest

from penstock.testing.kafka import KafkaUnavailableError
from tests.kafka.broker import require_kafka


def no_jars() -> None:
    raise KafkaUnavailableError("kafka-4.3.1", "there is no network")


def test_without_jars_a_test_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="there is no network"):
        require_kafka(no_jars)


def test_without_jars_a_run_in_ci_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(KafkaUnavailableError):
        require_kafka(no_jars)
