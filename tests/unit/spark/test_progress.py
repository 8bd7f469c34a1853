"""What is left of Spark's messages. These are real ones, with their middles cut."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigurationError
from penstock.spark.progress import is_of_spark, plain

SINK = """\
[STREAM_FAILED] Query [id = 4e2de275] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] Failed \
to initialize Python data source writer: Traceback (most recent call last):
  File "writing.py", line 148, in parse
    raise ConfigurationError(
penstock.errors.ConfigurationError: there is no option 'colour' for writing
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: bids_in_euros [id = 4e2de275]
Logical Plan:
penstock.plan: no
"""
FUNCTION = """\
Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times: \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 2228, in main
    process()
ZeroDivisionError: division by zero

\tat org.apache.spark.api.python.BasePythonRunner(PythonRunner.scala:581)
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SINK, "there is no option 'colour' for writing"),
        (FUNCTION, "ZeroDivisionError: division by zero"),
        (
            "Python worker failed to connect back. SQLSTATE: XXKST\n=== Streaming Query ===\n",
            "Python worker failed to connect back.",
        ),
    ],
)
def test_only_the_reason_is_left(text: str, words: str) -> None:
    assert plain(RuntimeError(text)) == words


def test_errors_of_spark_are_told_from_others() -> None:
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - not for all tests here

    assert is_of_spark(AnalysisException("no"))
    assert not is_of_spark(ConfigurationError("no"))
    assert not is_of_spark(ValueError("no"))
