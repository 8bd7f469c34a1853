"""Marks: what a Slice promises a Queue about the rows that follow. They are frames of a stream."""

from __future__ import annotations

from typing import Final

from penstock.transport.frames import Mark, MarkKind

__all__ = ["BEGINNING", "IDLE", "Mark", "MarkKind"]

BEGINNING: Final = Mark(MarkKind.DUE, 0)
"""What a stream promises before it has said anything: nothing."""
IDLE: Final = Mark(MarkKind.IDLE)
