"""What goes wrong, and when. The same seed gives the same schedule."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

APART_SECONDS = 3.0, 7.0
PAUSE_SECONDS = 1.0, 7.0
DOWN_SECONDS = 0.5, 4.0
FULL_SECONDS = 2.0, 8.0
SILENT_SECONDS = 7.0, 12.0
"""Longer than a broker's session, so that others take its place."""


class Fault(enum.Enum):
    SOURCE = "source"
    DRIVER = "driver"
    """The program itself."""
    JAVA = "java"
    """The driver's other half."""
    MEMBER = "member"
    WORKER = "worker"
    DATABASE = "database"
    PRODUCER = "producer"
    PAUSE = "pause"
    DISK = "disk"
    BROKER = "broker"
    BROKER_PAUSE = "broker-pause"
    BROKER_STOP = "broker-stop"
    """In order: its partitions get other leaders before it ends."""
    BROKERS = "brokers"
    """All of them at once."""


DECK = [
    *(Fault.SOURCE, Fault.SOURCE, Fault.DRIVER, Fault.JAVA, Fault.MEMBER, Fault.MEMBER),
    *(Fault.MEMBER, Fault.WORKER, Fault.WORKER, Fault.DATABASE, Fault.DATABASE, Fault.PRODUCER),
    *(Fault.PAUSE, Fault.PAUSE, Fault.PAUSE, Fault.DISK),
]
"""How often each comes, in relation. All of them come before any comes more often."""
KAFKA_DECK = [
    *(Fault.BROKER, Fault.BROKER, Fault.BROKER_PAUSE, Fault.BROKER_STOP, Fault.BROKERS),
    *(Fault.SOURCE, Fault.DRIVER, Fault.MEMBER, Fault.MEMBER, Fault.WORKER, Fault.PRODUCER),
    *(Fault.PAUSE, Fault.PAUSE),
]
LASTS = {
    Fault.WORKER: DOWN_SECONDS,
    Fault.DATABASE: DOWN_SECONDS,
    Fault.PAUSE: PAUSE_SECONDS,
    Fault.DISK: FULL_SECONDS,
    Fault.BROKER: DOWN_SECONDS,
    Fault.BROKER_PAUSE: SILENT_SECONDS,
    Fault.BROKERS: DOWN_SECONDS,
}


@dataclass(frozen=True, slots=True)
class Event:
    at_seconds: float
    """Since the queries have begun to write."""
    fault: Fault
    choice: float
    """Which of those whom it may hit, from 0 to 1."""
    lasts_seconds: float
    """Until it is over: the victim is started again, or goes on, or has room."""

    def __str__(self) -> str:
        lasts = f" for {self.lasts_seconds:.1f} s" if self.lasts_seconds else ""
        return f"{self.at_seconds:6.1f} s  {self.fault.value}{lasts} ({self.choice:.2f})"


def make_schedule(
    seed: int, seconds: float, faults: Collection[Fault], cards: Sequence[Fault] = DECK
) -> list[Event]:
    chance = random.Random(seed)
    deck: list[Fault] = []
    events: list[Event] = []
    at = chance.uniform(*APART_SECONDS)
    while at < seconds:
        if not deck:
            deck = list(cards)
            chance.shuffle(deck)
        fault = deck.pop()
        lasts = chance.uniform(*LASTS.get(fault, (0.0, 0.0)))
        events.append(Event(at, fault, chance.random(), lasts))
        at += chance.uniform(*APART_SECONDS)
    return [event for event in events if event.fault in faults]
