"""A reader that logs in by a password reads, and leaves the password nowhere."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from penstock.spark.options import ReadOptions
from penstock.spark.streaming.options import StreamOptions
from penstock.testing.kafka import KafkaCluster, Users
from tests.kafka.broker import require_kafka
from tests.kafka.side_by_side import OURS, Sources, fill, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

PASSWORD = "Correct-Horse-7391-Battery"
WRONG = "Wrong-Horse-2846-Staple"


@pytest.fixture(scope="module")
def secured() -> Iterator[KafkaCluster]:
    require_kafka()
    with KafkaCluster(users=Users({"reader": PASSWORD})) as cluster:
        yield cluster


def login(kafka: KafkaCluster, password: str = PASSWORD) -> dict[str, str]:
    known = kafka.client_settings("SASL_TLS", user="reader", mechanism="SCRAM-SHA-512")
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return {
        "kafka.bootstrap.servers": str(known["bootstrap.servers"]),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{module} required username="reader" password="{password}";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(known["ssl.ca.location"]),
    }


def forms(secret: str) -> list[bytes]:
    """The secret itself, and what base64 makes of it wherever it stands."""
    data = secret.encode()
    found = [data, data.hex().encode()]
    for shift in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = encode(b"\0" * shift + data)
            found.append(text[-(-shift * 8 // 6) : len(text) - 4])
    return found


def check_absent(secret: str, what: str, data: bytes) -> None:
    for form in forms(secret):
        assert form not in data, f"{what} has the password, as {form!r}"


def test_the_search_finds_what_is_encoded() -> None:
    for shift in range(6):
        hidden = base64.b64encode(b"x" * shift + PASSWORD.encode() + b"yy")
        with pytest.raises(AssertionError, match="here has the password"):
            check_absent(PASSWORD, "here", hidden)


def test_a_password_is_left_nowhere(
    kafka_spark: SparkSession,
    secured: KafkaCluster,
    topic: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    secured.topics.create(topic, 2)
    fill(secured, topic, 0, 40)
    options = {"subscribe": topic, "startingOffsets": "earliest", **login(secured)}
    sources = Sources(kafka_spark, secured, tmp_path)
    said: list[str] = []
    batches = sources.drain(OURS, "secured", **options)
    assert sum(rows.total() for rows in batches) == 40
    fill(secured, topic, 40, 10)
    again = sources.drain(OURS, "secured", **options)
    assert sum(rows.total() for rows in again) == 10
    frame = sources.frame(OURS, **options)
    assert rows_of(frame).total() == 50
    said.append(frame._jdf.queryExecution().toString())
    frame.explain(extended=True)
    said += [repr(StreamOptions.parse(options)), repr(ReadOptions.parse(options))]
    wrong = {**options, **login(secured, WRONG)}
    with pytest.raises(PySparkException) as refused:
        sources.drain(OURS, **wrong)
    said += [str(refused.value), *capfd.readouterr()]
    for secret in (PASSWORD, WRONG):
        for text in said:
            check_absent(secret, f"{text[:80]!r}", text.encode())
        written = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert {"begin.json", "feed.json", "state.json"} <= {path.name for path in written}
        for path in written:
            check_absent(secret, str(path), path.read_bytes())


def test_progress_of_a_query_shows_no_secret(
    kafka_spark: SparkSession, secured: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    secured.topics.create(topic, 1)
    fill(secured, topic, 0, 5, partitions=1)
    sources = Sources(kafka_spark, secured, tmp_path)
    options: dict[str, Any] = {"subscribe": topic, "startingOffsets": "earliest"}
    frame = sources.stream(OURS, **options, **login(secured))

    def take(batch: DataFrame, number: int) -> None:
        del number
        batch.count()

    query = sources.start(frame, take, "progress")
    assert query.awaitTermination(180)
    told = [str(each) for each in query.recentProgress]
    assert told
    for text in told:
        check_absent(PASSWORD, "progress", text.encode())
