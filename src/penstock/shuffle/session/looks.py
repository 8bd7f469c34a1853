"""What matching knows of looks and of producers. Pure; see `matching.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.shuffle.session.numbers import number_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.frontier import Frontier


@dataclass(frozen=True, slots=True)
class PastLook:
    """What a look has shown."""

    ends: Mapping[str, int]
    """Of all journals there were, by what frontiers call them."""
    names: frozenset[str]
    moving: frozenset[int]
    """Producers that were not still."""
    decided: Mapping[int, int]
    """By producer, the number of the last thing that the log had of it."""
    log: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """By partition of the transaction log: from where on entries tell who was in flight then, and
    where the log ended."""
    is_resumed: bool = False
    """No look: an earlier session has matched all up to the ends, and an epoch remembers that."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """From where on the markers of a producer in a journal are matched one by one."""

    end: int
    look: int
    number: int
    """Of all markers below the end."""
    is_resumed: bool = False
    """What is below was matched by an earlier session."""


@dataclass(slots=True)
class LoggedProducer:
    """What the log has told of a producer."""

    partition: int
    """Of the log."""
    is_in_flight: bool = False
    decided: int = field(default_factory=lambda: number_of(-1))


@dataclass(frozen=True, slots=True)
class Matched:
    """A delta for the pipeline."""

    delta: Frontier
    below: Frontier
    """The hints in it that stand for all that is below a look. They also concern a boundary that
    already waits for the producer: it cannot tell which of these commits are its own."""


class NotYetError(Exception):
    """The log or a look is missing that would tell."""
