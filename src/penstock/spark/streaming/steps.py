"""What a streaming read does, by numbers, for those who ask what a crash in between would do.

    1  draw     a query that begins draws the name of its feed
    2  note     the new feed's folder says whose it is
    3  open     the feed is the one that Spark's offset means
    4  give     an epoch, durable already, is to be the end of a batch: Spark hears of it next
    5  plan     the batch is divided among tasks
    6  read     a task has handed rows to Spark
    7  free     the feed has heard what the query is done with

1 and 2 are done once in a query's life, the others each time it runs. Up to 4 Spark has nothing on
record, and asks again. From 5 on it has: the same batch is planned again, between the same epochs,
and has the same rows. 7 is told again by the next run, so it may be lost.
"""

from __future__ import annotations

import enum


class Step(enum.Enum):
    """What has just been done when `reached` is called, by the numbers above."""

    DRAWN = "1"
    NOTED = "2"
    OPENED = "3"
    GIVEN = "4"
    PLANNED = "5"
    READ = "6"
    FREED = "7"


def reached(step: Step) -> None:
    """Called after each step. Does nothing; the crash tests put a kill in its place."""
