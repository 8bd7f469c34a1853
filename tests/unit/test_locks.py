"""Locks between processes: nobody waits without an end, and who gives up names the holder."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import pickle
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from penstock import locks
from penstock.locks import LockHeldError, describe_holder, locked, locking_within, try_lock
from penstock.process import ProcessIdentity, describe_process, is_stopped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROCESSES: Final = multiprocessing.get_context("fork")
WAIT_SECONDS_MAX: Final = 60.0


def hold(path: Path, held: Any) -> None:
    descriptor = os.open(path, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    held.set()
    signal.pause()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Any]:
    """A process that holds the lock of `file` until it is killed."""
    (tmp_path / "file").touch()
    held = PROCESSES.Event()
    process = PROCESSES.Process(target=hold, args=(tmp_path / "file", held), daemon=True)
    process.start()
    assert held.wait(WAIT_SECONDS_MAX)
    yield process
    process.kill()
    process.join(WAIT_SECONDS_MAX)


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def await_stopped(pid: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_stopped(pid):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_lock_that_is_held_is_given_up_with_the_name_of_its_holder(
    holder: Any, descriptor: int, tmp_path: Path
) -> None:
    said = rf"file is locked by process {holder.pid} \("
    with pytest.raises(LockHeldError, match=said) as told, locked(descriptor, 0.05):
        pass
    assert told.value.path == str(tmp_path / "file")
    assert "pytest" in told.value.holder or "python" in told.value.holder
    assert str(pickle.loads(pickle.dumps(told.value))) == str(told.value)
    holder.kill()
    with locked(descriptor):
        assert not try_lock(os.open(tmp_path / "file", os.O_RDWR))


def test_a_holder_that_is_stopped_is_not_waited_for(
    holder: Any, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "STOPPED_SECONDS_MAX", 0.05)
    os.kill(holder.pid, signal.SIGSTOP)
    await_stopped(holder.pid)
    with (
        pytest.raises(LockHeldError, match=rf"process {holder.pid} .* which is stopped"),
        locked(descriptor, WAIT_SECONDS_MAX * 60),
    ):
        pass


def test_waits_for_several_locks_share_one_limit(holder: Any, descriptor: int) -> None:
    assert holder.is_alive()
    with locking_within(0.05):
        for _ in range(1_000):  # 50 s, were it not for the common limit
            with pytest.raises(LockHeldError), locked(descriptor):
                pass


def test_a_lock_whose_taker_is_gone_is_told_to_be_a_childs(tmp_path: Path, descriptor: int) -> None:
    ready = PROCESSES.SimpleQueue()
    taker = PROCESSES.Process(target=take_and_fork, args=(tmp_path / "file", ready))
    taker.start()
    child = ready.get()
    os.waitpid(taker.pid or 0, 0)  # `join` waits for a pipe that the child has, too
    try:
        assert f"process {taker.pid}, which is gone: a child of it" in describe_holder(descriptor)
    finally:
        os.kill(child, signal.SIGKILL)


def take_and_fork(path: Path, ready: Any) -> None:
    descriptor = os.open(path, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    child = ctypes.CDLL(None).fork()
    if child == 0:
        signal.pause()
    ready.put(child)
    os._exit(0)


# Which process is which


def ended() -> ProcessIdentity:
    """Of a process that has ended, and whose end nobody has heard of yet."""
    told, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(tells, pickle.dumps(ProcessIdentity.own()))
        os._exit(0)
    identity: ProcessIdentity = pickle.loads(os.read(told, 65_536))
    os.close(told)
    os.close(tells)
    assert identity.pid == pid
    return identity


def test_a_process_that_has_ended_is_gone_and_one_that_lives_is_not() -> None:
    identity, own = ended(), ProcessIdentity.own()
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not identity.is_surely_gone:  # as soon as it is a zombie
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.waitpid(identity.pid, 0)
    assert identity.is_surely_gone
    assert not own.is_surely_gone
    assert ProcessIdentity.from_json(own.as_json()) == own


def test_a_number_that_was_given_to_another_process_is_not_the_same_process() -> None:
    own = ProcessIdentity.own()
    assert own.started is not None
    assert replace(own, started=own.started - 1).is_surely_gone


@pytest.mark.parametrize(
    "elsewhere", [{"boot": "another"}, {"namespace": "pid:[1]"}, {"started": None}, {"pid": 0}]
)
def test_of_a_process_elsewhere_nothing_is_known(elsewhere: dict[str, Any]) -> None:
    identity = ended()
    os.waitpid(identity.pid, 0)
    assert not replace(identity, **elsewhere).is_surely_gone


def test_a_process_is_described_by_its_command() -> None:
    assert describe_process(os.getpid()).startswith(f"process {os.getpid()} (")
