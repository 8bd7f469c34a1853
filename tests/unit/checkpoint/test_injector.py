"""The injector: the newest barrier is claimed once, by one loop, and an older never after it."""

from __future__ import annotations

import random
import sys
import threading
import time
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from penstock.checkpoint import injector as injector_module
from penstock.checkpoint.barrier import Barrier, Flags
from penstock.checkpoint.injector import Injector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def test_nothing_is_pending_at_first() -> None:
    injector = Injector()
    assert injector.pending is None
    assert injector.claim() is None


def test_a_trigger_is_claimed_once() -> None:
    injector = Injector()
    assert injector.trigger(Barrier(1, 7, Flags.DRAIN))
    assert injector.pending is not None
    assert injector.claim() == Barrier(1, 7, Flags.DRAIN)
    assert injector.pending is None
    assert injector.claim() is None


def test_a_newer_trigger_supersedes_an_older() -> None:
    injector = Injector()
    assert injector.trigger(Barrier(1, 1))
    assert injector.trigger(Barrier(2, 2))
    assert injector.claim() == Barrier(2, 2)
    assert injector.claim() is None


def test_what_is_repeated_or_late_is_not_offered() -> None:
    injector = Injector()
    assert injector.trigger(Barrier(2, 2))
    assert not injector.trigger(Barrier(2, 2))
    assert not injector.trigger(Barrier(1, 1))
    assert injector.claim() == Barrier(2, 2)
    assert not injector.trigger(Barrier(2, 2)), "it was claimed already"
    assert not injector.trigger(Barrier(1, 1))
    assert injector.pending is None


def test_checkpoint_zero_is_a_checkpoint() -> None:
    injector = Injector()
    assert injector.trigger(Barrier(0, 0))
    assert injector.claim() == Barrier(0, 0)


def test_a_checkpoint_is_cancelled_after_it_was_triggered() -> None:
    injector = Injector()
    cancel = Barrier(1, 1, Flags.CANCEL)
    injector.trigger(Barrier(1, 1))
    assert injector.trigger(cancel)
    assert not injector.trigger(cancel)
    assert injector.claim() == cancel
    assert not injector.trigger(Barrier(1, 1)), "what is cancelled stays so"
    assert injector.trigger(Barrier(2, 2))


class AgainstOneSlot(RuleBasedStateMachine):
    """The model: all that was triggered, and how much of it was claimed."""

    def __init__(self) -> None:
        super().__init__()
        self.injector = Injector()
        self.accepted: list[int] = []
        self.claimed: list[int] = []

    @rule(checkpoint=st.integers(0, 8))
    def trigger(self, checkpoint: int) -> None:
        is_newest = all(checkpoint > other for other in self.accepted)
        assert self.injector.trigger(Barrier(checkpoint, 0)) == is_newest
        if is_newest:
            self.accepted.append(checkpoint)

    @rule()
    def claim(self) -> None:
        newest = max(self.accepted, default=None)
        is_there = newest is not None and newest not in self.claimed
        assert (self.injector.pending is not None) == is_there
        barrier = self.injector.claim()
        assert (barrier is not None) == is_there
        if barrier is not None:
            assert barrier.checkpoint == newest
            self.claimed.append(barrier.checkpoint)


AgainstOneSlot.TestCase.settings = settings(max_examples=50)
TestAgainstOneSlot = AgainstOneSlot.TestCase


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Threads take turns as often as the interpreter lets them."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def yields_everywhere(seed: int) -> Callable[..., Any]:
    """A trace that gives the interpreter away between any two instructions of the injector, so
    that threads meet where a plain run would need years to let them."""
    draw = random.Random(seed)

    def trace(frame: Any, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != injector_module.__file__:
            return None
        frame.f_trace_opcodes = True
        if draw.random() < 0.5:
            time.sleep(0)
        return trace

    return trace


@pytest.mark.parametrize(("triggers", "traced"), [(20_000, False), (150, True)])
def test_many_threads(eager_switching: None, triggers: int, traced: bool) -> None:
    """Any loop may claim, but each trigger at most once, and the newest in the end. A claim that
    began after another had ended has the newer barrier."""
    injector = Injector()
    ticket = count()
    done = threading.Event()
    accepted: list[list[int]] = [[], []]
    claims: list[list[tuple[int, int, int]]] = [[] for _ in range(3)]  # began, ended, checkpoint

    def coordinate(own: list[int], parity: int) -> None:
        if traced:
            sys.settrace(yields_everywhere(parity))
        own += (
            checkpoint
            for checkpoint in range(triggers)
            if checkpoint % 3 != parity and injector.trigger(Barrier(checkpoint, 0))
        )

    def poll(own: list[tuple[int, int, int]], seed: int) -> None:
        if traced:
            sys.settrace(yields_everywhere(seed))
        while True:
            was_done = done.is_set()
            if injector.pending is not None:
                began = next(ticket)
                barrier = injector.claim()
                if barrier is not None:
                    own.append((began, next(ticket), barrier.checkpoint))
            elif was_done:
                return

    coordinators = [
        threading.Thread(target=coordinate, args=(own, parity))
        for parity, own in enumerate(accepted)
    ]
    pollers = [threading.Thread(target=poll, args=(own, 7 + n)) for n, own in enumerate(claims)]
    for thread in (*pollers, *coordinators):
        thread.start()
    for thread in coordinators:
        thread.join()
    done.set()
    for thread in pollers:
        thread.join()

    every_claim = sorted(claim for own in claims for claim in own)
    checkpoints = [checkpoint for _, _, checkpoint in every_claim]
    assert len(set(checkpoints)) == len(checkpoints), "claimed twice"
    assert set(checkpoints) <= {checkpoint for own in accepted for checkpoint in own}
    assert not set(accepted[0]) & set(accepted[1]), "accepted twice"
    assert max(checkpoints) == triggers - 1
    newest_ended = -1
    by_end = sorted(every_claim, key=lambda claim: claim[1])
    ended = iter(by_end)
    upcoming = next(ended)
    for began, _, checkpoint in every_claim:
        while upcoming[1] < began:
            newest_ended = max(newest_ended, upcoming[2])
            upcoming = next(ended)
        assert checkpoint > newest_ended, "an older claim after a newer"
