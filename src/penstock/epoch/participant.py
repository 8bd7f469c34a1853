"""What takes part in an epoch: a member's snapshot, a sink, a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.checkpoint.barrier import Barrier


class Participant(Protocol):
    """Called by one thread at a time, but for `give_up`. An epoch is captured, prepared, and then
    committed or aborted; it may be aborted at any point before, and again after that."""

    @property
    def name(self) -> str:
        """Which participant of its member this is. It stays the same over restarts."""

    def capture(self, barrier: Barrier) -> int | None:
        """Draws the line: what came until now belongs to the barrier's epoch, what comes later to
        the next one. Returns the member's local watermark at the line, if this participant knows
        it. Nothing has to be durable yet: the faster this is, the sooner the pipeline goes on."""

    def prepare(self, epoch: int) -> None:
        """Makes durable what was captured, so that it can be committed or aborted after a crash.
        An exception means that it is not: the epoch is aborted, and the reason told to all."""

    def give_up(self, epoch: int) -> None:
        """From another thread, while the epoch is captured or prepared: it is lost anyway. What
        waits for something may stop waiting, and raise. An abort follows."""

    def commit(self, epoch: int) -> None:
        """Makes a prepared epoch visible. Does nothing if that was done before."""

    def abort(self, epoch: int) -> None:
        """Forgets an epoch, prepared or not. Does nothing if there is nothing to forget. Never
        undoes a commit."""

    def in_doubt(self) -> list[int]:
        """The epochs that are prepared and neither committed nor aborted, ascending: after a
        restart they wait for what was decided."""
