"""Signals that end commands, sent to this very process."""

from __future__ import annotations

import os
import signal

import pytest

from penstock.cli.interrupts import interrupts

SIGNALS = [signal.SIGINT, signal.SIGTERM]


class Second(Exception):  # noqa: N818 - it is no error
    """What was in force before took the signal."""


def _raise(_number: int, _frame: object) -> None:
    raise Second


@pytest.fixture(params=SIGNALS)
def number(request: pytest.FixtureRequest) -> signal.Signals:
    found: signal.Signals = request.param
    return found


def test_the_first_stops_in_order_and_the_second_at_once(number: signal.Signals) -> None:
    before = signal.signal(number, _raise)
    stopped: list[bool] = []
    try:
        with interrupts(lambda: stopped.append(True)):
            os.kill(os.getpid(), number)
            assert stopped == [True]
            with pytest.raises(Second):
                os.kill(os.getpid(), number)
        assert stopped == [True]
        assert signal.getsignal(number) is _raise
    finally:
        signal.signal(number, before)


def test_what_is_ignored_stays_ignored(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    stopped: list[bool] = []
    try:
        with interrupts(lambda: stopped.append(True)):
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_IGN
        assert not stopped
    finally:
        signal.signal(number, before)
