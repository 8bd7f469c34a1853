"""Ctrl-C in the demo on Kafka."""

from __future__ import annotations

import os
import signal

import pytest

from penstock.demo.kafka.story import Interrupt


class Freed:
    """As an object of Java's, which py4j frees in a finalizer: Ctrl-C comes just then."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        # A handler of Python's runs before the next instruction.
        _ = sum(range(10))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_that_python_drops_is_remembered() -> None:
    before = signal.getsignal(signal.SIGINT)
    called: list[bool] = []
    interrupt = Interrupt(lambda: called.append(True))
    try:
        interrupt.check()
        freed = Freed()
        del freed
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
    finally:
        interrupt.close()
    assert signal.getsignal(signal.SIGINT) is before
    assert called == [True]
