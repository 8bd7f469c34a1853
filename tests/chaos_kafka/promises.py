"""What clerks were told of their transfers: where each row is, and how it was decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PROMISES: Final = "promises"
"""The folder: a file for each clerk's process."""
STORED: Final = "stored"

Place: TypeAlias = tuple[str, int, int]
"""Topic, partition and offset."""


@dataclass(slots=True)
class Promise:
    places: tuple[Place, ...] = ()
    """Where brokers have confirmed its rows to be."""
    outcome: str = "undecided, as far as its clerk knows"
    """Or `committed`, or `aborted`."""


class PromiseWriter:
    """A line for each, in a file whose last one is in pieces if its process was killed."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def stored(self, transfer: str, places: Sequence[Place]) -> None:
        words = " ".join(f"{topic}:{partition}:{offset}" for topic, partition, offset in places)
        self._file.write(f"{STORED} {transfer} {words}\n")

    def decided(self, transfer: str, outcome: str) -> None:
        self._file.write(f"{outcome} {transfer}\n")


def read_promises(folder: Path) -> dict[str, Promise]:
    """By transfer."""
    found: dict[str, Promise] = {}
    for path in folder.iterdir():
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # its process was killed in the middle of it
            word, transfer, *places = line.split()
            promise = found.setdefault(transfer, Promise())
            if word == STORED:
                promise.places = tuple(_place(each) for each in places)
            else:
                promise.outcome = word
    return found


def _place(words: str) -> Place:
    topic, partition, offset = words.rsplit(":", 2)
    return topic, int(partition), int(offset)
