"""Counting a query's documents from what Spark tells of it."""

from __future__ import annotations

from typing import Any, cast

from penstock.spark.progress import Progress


class Query:
    """Tells what it is told to."""

    name = "orders"
    isActive = True  # noqa: N815 - Spark's name
    status: dict[str, Any] = {"message": "Processing new data"}  # noqa: RUF012

    def __init__(self) -> None:
        self.recentProgress: list[dict[str, Any]] = []

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return self.recentProgress[-1] if self.recentProgress else None

    def tell(self, batch: int, rows: int) -> None:
        self.recentProgress.append(
            {
                "batchId": batch,
                "numInputRows": rows,
                "processedRowsPerSecond": 1.0,
                "durationMs": {},
                "sources": [],
            }
        )


def test_a_batch_that_was_told_before_it_began_counts_when_it_is_done() -> None:
    query = Query()
    progress = Progress(cast("Any", query))
    assert progress.look().documents == 0
    query.tell(0, 5)
    assert progress.look().documents == 5
    query.tell(1, 0)  # it waits
    assert progress.look().documents == 5
    query.tell(1, 50)
    assert progress.look().documents == 55
    assert progress.look().documents == 55
    query.tell(2, 0)
    assert progress.look().documents == 55
    query.tell(2, 7)
    query.tell(3, 0)  # nobody looked in between
    assert progress.look().documents == 62
    query.tell(3, 1)
    query.tell(4, 2)
    query.tell(5, 3)
    assert progress.look().documents == 68


def test_of_a_query_that_failed_the_reason_is_told_and_no_traceback() -> None:
    """Spark's message of such a query quotes the Python worker's traceback whole."""
    query = Query()
    query.isActive = False
    query.status = {
        "message": "Terminated with exception: [PYTHON_EXCEPTION] An exception was thrown from the "
        "Python worker: Traceback (most recent call last):\n"
        '  File "writing.py", line 75, in write\n    return stage()\n'
        "penstock.journal.errors.BadRowsError: row 0, column 'customer': has no value\n"
        " SQLSTATE: 38000"
    }
    assert Progress(cast("Any", query)).look().doing == "row 0, column 'customer': has no value"
