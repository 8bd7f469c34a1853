"""The conformance suite of two-phase sinks: run it on a sink of your own.

    class FolderTarget(Target):
        def __init__(self, folder): self.folder = folder
        def sink(self): return FolderSink(self.folder)
        def contents(self): return [row["id"] for row in read_all(self.folder)]

    class TestFolderSink(SinkConformance):
        @pytest.fixture(autouse=True)
        def _folder(self, tmp_path): self.folders = (tmp_path / str(n) for n in itertools.count())
        def new_target(self): return FolderTarget(next(self.folders))

Every check begins with a new target. Processes are forked, killed and paused at every step of the
protocol, so this needs a system that has `fork`.
"""

from __future__ import annotations

import abc
import os
import signal
import sys
import traceback
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.sinks import batches
from penstock.sinks.batches import abort_batch, commit_batch
from penstock.sinks.two_phase import Batch

if TYPE_CHECKING:
    import enum
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.sinks.two_phase import Part, TwoPhaseSink

_COLUMNS: Final[dict[str, pa.DataType]] = {"id": pa.int64(), "text": pa.string()}
SCHEMA: Final = pa.schema(_COLUMNS)
"""Of the rows that the checks write. `id` is different in every row of a query."""
QUERY: Final = "query-a"
ROUNDS: Final = 5
"""Of what depends on the order in which two processes come to run."""


class Target(abc.ABC):
    """An empty place for a sink, and what is to be seen there."""

    @abc.abstractmethod
    def sink(self) -> TwoPhaseSink:
        """A sink that writes to this place, built anew each time."""

    @abc.abstractmethod
    def contents(self) -> Iterable[int]:
        """The ids of all rows that a reader sees now."""

    def leftovers(self) -> Sequence[object]:
        """What is staged or prepared there now, and no reader sees. None by default."""
        return ()


class SinkConformance(abc.ABC):
    hooks: tuple[tuple[Any, type[enum.Enum]], ...] = ((batches, batches.Step),)
    """Where a process is ended or paused: modules whose `reached` is called after each of the
    steps. Add those of your sink, if it has any of its own."""

    @abc.abstractmethod
    def new_target(self) -> Target:
        """Another empty place."""

    def test_rows_show_when_their_batch_is_committed_and_not_before(self) -> None:
        target = self.new_target()
        batch = Batch(QUERY, 0)
        parts = stage(target.sink(), batch, [1, 2], [3])
        expect(target, [], "of staged rows nothing shows")
        commit_batch(target.sink(), batch, parts)
        expect(target, [1, 2, 3], "after the commit")
        write(target.sink(), 1, [4], [], [5, 6])
        expect(target, [1, 2, 3, 4, 5, 6], "after the second batch")
        expect_no_leftovers(target)

    def test_a_batch_that_is_run_again_is_committed_once(self) -> None:
        target = self.new_target()
        batch = Batch(QUERY, 7)
        parts = stage(target.sink(), batch, [1, 2], [3])
        for _ in range(3):
            commit_batch(target.sink(), batch, parts)
            expect(target, [1, 2, 3], "committed again with the same parts")
        write(target.sink(), 7, [1], [2, 3])
        write(target.sink(), 7)
        expect(target, [1, 2, 3], "committed again with other parts")
        write(target.sink(), 8, [4])
        write(target.sink(), 7, [1, 2, 3])
        write(target.sink(), 3, [1, 2, 3])
        expect(target, [1, 2, 3, 4], "committed again after a later batch")
        expect_no_leftovers(target)

    def test_attempts_that_were_not_chosen_leave_no_trace(self) -> None:
        target = self.new_target()
        batch = Batch(QUERY, 0)
        stage(target.sink(), batch, [1, 2], [3])
        parts = stage(target.sink(), batch, [1, 2], [3])
        commit_batch(target.sink(), batch, parts)
        stage(target.sink(), batch, [1, 2])
        expect(target, [1, 2, 3], "with attempts before and after the commit")
        write(target.sink(), 1, [4])
        expect(target, [1, 2, 3, 4], "after the next batch")
        expect_no_leftovers(target)

    def test_batches_without_rows_change_nothing(self) -> None:
        target = self.new_target()
        write(target.sink(), 0)
        write(target.sink(), 1, [], [])
        expect(target, [], "nothing was written")
        write(target.sink(), 2, [1])
        write(target.sink(), 3, [])
        write(target.sink(), 2, [])
        expect(target, [1], "and nothing taken away")

    def test_queries_do_not_stand_in_for_each_other(self) -> None:
        target = self.new_target()
        write(target.sink(), 5, [1])
        write(target.sink(), 0, [2], query="query-b")
        write(target.sink(), 5, [1])
        write(target.sink(), 0, [2], query="query-b")
        write(target.sink(), 6, [3])
        expect(target, [1, 2, 3], "of two queries")

    def test_an_aborted_batch_can_be_run_again(self) -> None:
        target = self.new_target()
        batch = Batch(QUERY, 0)
        abort_batch(target.sink(), stage(target.sink(), batch, [1]), all_staged=False)
        expect_no_leftovers(target)
        parts = stage(target.sink(), batch, [1], [2])
        abort_batch(target.sink(), parts, all_staged=True)
        commit_batch(target.sink(), batch, parts)
        expect(target, [1, 2], "the commit was under way when the batch was aborted")

    def test_killed_at_every_step(self) -> None:
        for module, step in self._steps():
            target = self.new_target()
            write(target.sink(), 0, [0])
            child = fork(lambda sink: write(sink, 1, [1, 2], [3]), target, module, step)
            if ended(child) != -signal.SIGKILL:
                continue  # its steps are not all on the way of a commit
            when = f"killed at {step}"
            expect_one_of(target, [[0], [0, 1, 2, 3]], f"{when}: whole or not at all")
            write(target.sink(), 1, [1], [2, 3])
            expect(target, [0, 1, 2, 3], f"{when}, and run again")
            write(target.sink(), 2, [4])
            expect(target, [0, 1, 2, 3, 4], f"{when}, and on to the next batch")
            expect_no_leftovers(target)

    def test_killed_twice(self) -> None:
        steps = list(batches.Step)
        for first, second in zip(steps[1:], steps[:-1], strict=True):
            target = self.new_target()
            for step in (first, second):
                ended(fork(lambda sink: write(sink, 1, [1, 2]), target, batches, step))
            write(target.sink(), 1, [1, 2])
            write(target.sink(), 2, [3])
            expect(target, [1, 2, 3], f"killed at {first} and again at {second}")
            expect_no_leftovers(target)

    def test_paused_at_every_step_while_another_goes_on(self) -> None:
        for module, step in self._steps():
            # A later batch has the decision of this one forgotten: it matters for our own steps.
            for later in ([], [2]) if module is batches else ([],):
                target = self.new_target()
                write(target.sink(), 0, [0])
                child = fork(lambda sink: write(sink, 1, [1]), target, module, step, signal.SIGSTOP)
                if not is_stopped(child):
                    continue
                write(target.sink(), 1, [1])
                if later:
                    write(target.sink(), 2, later)
                os.kill(child, signal.SIGCONT)
                ended(child)  # it may have failed: its place was taken
                expect(target, [0, 1, *later], f"paused at {step}, replaced, and woken up")
                write(target.sink(), 3, [3])
                expect(target, [0, 1, *later, 3], f"paused at {step}, and on to the next batch")

    def test_two_processes_at_once(self) -> None:
        for _ in range(ROUNDS):
            target = self.new_target()
            children = [fork(lambda sink: write(sink, 0, [1], [2, 3]), target) for _ in "ab"]
            codes = [ended(child) for child in children]
            write(target.sink(), 0, [1, 2, 3])
            expect(target, [1, 2, 3], f"committed by two at once, which ended with {codes}")

    def _steps(self) -> list[tuple[Any, enum.Enum]]:
        return [(module, step) for module, steps in self.hooks for step in steps]


def stage(sink: TwoPhaseSink, batch: Batch, *tasks: Sequence[int]) -> list[Part]:
    """What tasks with these ids stage: each in two record batches."""
    staged = []
    for partition, ids in enumerate(tasks):
        part = sink.stage(batch, partition, _rows(ids))
        batches.reached(batches.Step.STAGED)
        if part is not None:
            staged.append(part)
    return staged


def write(sink: TwoPhaseSink, number: int, *tasks: Sequence[int], query: str = QUERY) -> None:
    """A whole batch, as Spark runs it."""
    batch = Batch(query, number)
    commit_batch(sink, batch, stage(sink, batch, *tasks))


def expect(target: Target, ids: Sequence[int], when: str) -> None:
    expect_one_of(target, [ids], when)


def expect_one_of(target: Target, possible: Sequence[Sequence[int]], when: str) -> None:
    found = Counter(target.contents())
    if all(found != Counter(ids) for ids in possible):
        raise AssertionError(f"{when}: {sorted(found.elements())}, not {possible}")


def expect_no_leftovers(target: Target) -> None:
    if left := target.leftovers():
        raise AssertionError(f"this should have been removed: {list(left)}")


def fork(
    work: Callable[[TwoPhaseSink], None],
    target: Target,
    module: Any = None,
    step: enum.Enum | None = None,
    ending: signal.Signals = signal.SIGKILL,
) -> int:
    """Does the work in a process of its own, which is killed or paused when it reaches the step."""
    child = os.fork()
    if child:
        return child
    try:
        if module is not None:
            module.reached = lambda at: os.kill(os.getpid(), ending) if at is step else None
        work(target.sink())
    except BaseException:  # noqa: BLE001 - the parent is told by the exit code
        traceback.print_exc(file=sys.stderr)
        os._exit(1)
    os._exit(0)


def ended(child: int) -> int:
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def is_stopped(child: int) -> bool:
    """Waits until the process has stopped, or has ended."""
    _, status = os.waitpid(child, os.WUNTRACED)
    return os.WIFSTOPPED(status)


def _rows(ids: Sequence[int]) -> Iterator[pa.RecordBatch]:
    for some in (ids[: len(ids) // 2], ids[len(ids) // 2 :]):
        texts = [f"text {each % 2}" for each in some]
        yield pa.record_batch([pa.array(some, pa.int64()), pa.array(texts)], schema=SCHEMA)
