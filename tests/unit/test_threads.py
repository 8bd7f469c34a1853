"""Threads: whoever owns one learns that it ended, and all of them are started in one place."""

from __future__ import annotations

import ast
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import threads
from penstock.threads import ENDED_MAX, Pool, supervised

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = Path(__file__).parents[2] / "src" / "penstock"
STARTERS = {
    "Thread",
    "Timer",
    "InheritableThread",
    "ThreadPoolExecutor",
    "ThreadPool",
    "start_new_thread",
    "start_joinable_thread",
    "to_thread",
    "run_in_executor",
}
ALLOWED = {
    ("threads.py", "Thread"): "it is the place",
    ("threads.py", "ThreadPoolExecutor"): "it is the place",
    ("spark/cluster/job.py", "InheritableThread"): "Spark's own kind: its failure is `MemberJob`'s",
    (
        "directory/gossip/keyvalue.py",
        "start_new_thread",
    ): "by the garbage collector, without a lock",
    ("transport/dropping.py", "start_new_thread"): "by the garbage collector, without a lock",
}


@pytest.fixture(autouse=True)
def _nobody_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_ended", type(threads._ended)(maxlen=ENDED_MAX))


def starts_in(path: Path) -> set[str]:
    """The names by which it starts threads, called or handed on."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names}
    return found & STARTERS


def is_annotation_only(path: Path, name: str) -> bool:
    """`threading.Thread` may be the type of something."""
    tree = ast.parse(path.read_text())
    called = {
        each
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") != "cast"
        for each in (node.func, *node.args, *(keyword.value for keyword in node.keywords))
    }
    names = {node.attr for node in called if isinstance(node, ast.Attribute)}
    return name not in names | {node.id for node in called if isinstance(node, ast.Name)}


def test_every_thread_of_the_product_is_supervised() -> None:
    """A new one goes through `supervised` or `Pool`, or says here why not."""
    found = {
        (str(path.relative_to(SOURCE)), name)
        for path in SOURCE.rglob("*.py")
        for name in starts_in(path)
        if not is_annotation_only(path, name)
    }
    assert found == set(ALLOWED)


@pytest.mark.parametrize(
    "line",
    [
        "import threading as t; t.Thread(target=print).start()",
        "from threading import Thread; Thread(target=print)",
        "import threading; threading.Timer(1, print)",
        "from concurrent import futures; futures.ThreadPoolExecutor(1)",
        "import weakref, _thread; weakref.finalize(x, _thread.start_new_thread, f)",
        "import asyncio; asyncio.to_thread(print)",
    ],
)
def test_this_test_sees_threads(tmp_path: Path, line: str) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(line)
    assert [name for name in starts_in(probe) if not is_annotation_only(probe, name)]


def ended_with(work: Callable[[], None], *, until: Callable[[], bool] | None = None) -> list[str]:
    """What the owner of a thread is told."""
    told: list[str] = []
    thread = supervised("test", work, fail=lambda error: told.append(repr(error)), until=until)
    thread.start()
    thread.join()
    return told


def raise_(error: BaseException) -> None:
    raise error


def test_the_owner_is_told_what_ended_a_thread() -> None:
    assert ended_with(lambda: raise_(KeyError("x"))) == ["KeyError('x')"]
    (exited,) = ended_with(lambda: raise_(SystemExit(3)))
    assert "ThreadEndedError" in exited
    assert "SystemExit(3)" in exited
    assert threads.ended() == (), "its owner tells"


def test_a_loop_that_returns_too_early_has_failed() -> None:
    closing = threading.Event()
    (told,) = ended_with(lambda: None, until=closing.is_set)
    assert "'penstock test' returned while it was needed" in told
    closing.set()
    assert ended_with(lambda: None, until=closing.is_set) == []
    assert ended_with(lambda: None) == [], "what is no loop may return"


@pytest.mark.parametrize("fail", [None, lambda _: raise_(OSError("the owner is gone"))])
def test_a_thread_that_nobody_tells_of_is_remembered(
    fail: Callable[[BaseException], None] | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "penstock.threads"):
        for number in range(ENDED_MAX + 1):
            thread = supervised(f"n{number}", lambda: raise_(ValueError("x")), fail=fail)
            thread.start()
            thread.join()
    assert len(threads.ended()) == ENDED_MAX
    assert {each.reason for each in threads.ended()} == {"ValueError: x"}
    assert "the thread 'penstock n0' ended: ValueError: x" in caplog.text


def test_what_work_of_a_pool_raises_is_told() -> None:
    told: list[BaseException] = []
    pool = Pool(1, "test", told.append)
    error = KeyError("x")
    future = pool.submit(lambda: raise_(error))
    assert pool.submit(lambda: 3).result(60) == 3
    pool.close()
    assert told == [error]
    assert future.exception(60) is error
