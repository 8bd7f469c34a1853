"""A producer in a process of its own that leaves its transaction unfinished.

    python -m tests.browser.producer STORE open    it wrote, and does not commit
    python -m tests.browser.producer STORE half    its commit is in one of two journals

It says who it is, waits for a line, goes on, and says how that ended.
"""

from __future__ import annotations

import sys

from penstock.errors import PenstockError
from penstock.journal import open_store, transaction
from penstock.journal.transaction import Step

FIRST_ID = -1_000


def main(url: str, kind: str) -> None:
    with open_store(url) as store, store.producer("nightly") as producer:
        opened = producer.transaction()
        rows = [{"id": FIRST_ID - n, "region": ("eu", "us")[n % 2], "note": "n"} for n in range(50)]
        opened.append("orders", rows)
        if kind == "half":
            transaction.reached = _pause_at_first_ack(str(producer.id))
        else:
            _pause(str(producer.id))
        try:
            opened.commit()
            _say("committed")
        except PenstockError as error:
            _say(f"{type(error).__name__}: {error}")


def _pause_at_first_ack(producer: str):  # type: ignore[no-untyped-def]
    paused = False

    def reached(step: Step) -> None:
        nonlocal paused
        if step is Step.ACKNOWLEDGED_ONE and not paused:
            paused = True
            _pause(producer)

    return reached


def _pause(producer: str) -> None:
    _say(producer)
    sys.stdin.readline()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
