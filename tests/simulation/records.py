"""The simulated records: one store for all, whose calls take time and fail in either way.

The code under test calls records as plain functions, but each call has to be a step of its own, at
which a process can die. So a call that has no answer yet abandons the caller, and when the answer
is there the caller is run again from the start, with all answers so far. It must do nothing else
that lasts: what it keeps in its own fields is put back before.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.epoch.decisions import Decision
from penstock.errors import PenstockError
from tests.simulation.choices import Menu, evenly, seldom
from tests.simulation.story import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.simulation.world import Process, World

WAYS: Final = Menu((80, 0.004), (12, 0.03), (5, 0.2), (2, 1.0), (1, 4.0))
"""In seconds: how long a call takes to the store, and its answer back."""
LATE: Final = evenly(1.0, 3.0, 9.0)
"""In seconds: when a call takes effect that its caller has given up."""


class StoreError(Exception):
    """The call failed, or its answer was lost."""


class Call(NamedTuple):
    kind: str
    name: str
    value: bytes = b""


class Store:
    """What is on record. `watch` sees each change before anybody else does."""

    failures = Menu((970, ""), (15, "before"), (15, "after"))
    """Of a call: before or after it took effect. The caller is told the same."""

    def __init__(self, watch: Callable[[Process, Call, bool], None]) -> None:
        self.values: dict[str, bytes] = {}
        self._watch = watch

    def perform(self, process: Process, call: Call) -> Any:
        match call.kind:
            case "create":
                created = self._create(call)
                self._watch(process, call, created)
                return created
            case "read":
                return self.values.get(call.name)
            case "names":
                return sorted(name for name in self.values if name.startswith(call.name))
            case "delete":
                self._watch(process, call, call.name in self.values)
                self.values.pop(call.name, None)
        return None

    def _create(self, call: Call) -> bool:
        if call.name in self.values:
            return False
        self.values[call.name] = call.value
        return True


class _Abandoned(BaseException):
    """The answer to this call is not there yet."""


class RemoteRecords:
    """Records as a process sees them. Every use is within a Task."""

    creates_atomically: Final = True

    def __init__(self, process: Process, store: Store) -> None:
        self.process = process
        self.store = store
        self._task: Task | None = None

    def create(self, name: str, value: bytes) -> bool:
        return bool(self._answer(Call("create", name, value)))

    def read(self, name: str) -> bytes | None:
        answer: bytes | None = self._answer(Call("read", name))
        return answer

    def replace(self, name: str, value: bytes) -> None:
        raise AssertionError(f"{name} has an old form: {value!r}")

    def shown(self, name: str) -> str:
        return name

    def names(self, prefix: str = "") -> list[str]:
        return list(self._answer(Call("names", prefix)))

    def delete(self, name: str) -> None:
        self._answer(Call("delete", name))

    def delete_all(self, names: Iterable[str]) -> None:
        for name in names:
            self.delete(name)

    def _answer(self, call: Call) -> Any:
        if self._task is None:
            raise AssertionError("records are used outside of a task")
        return self._task.answer(call)


class Task:
    """A function that uses records, run step by step. `done` gets what it returns, `failed` the
    StoreError that it raised."""

    def __init__(
        self,
        records: RemoteRecords,
        what: str,
        function: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[], None],
        *,
        keeps: object = None,
    ) -> None:
        """`keeps` is the object whose fields the function changes."""
        self._records = records
        self._what = what
        self._function = function
        self._done = done
        self._failed = failed
        self._keeps = keeps
        self._kept = copy.copy(vars(keeps)) if keeps is not None else {}
        self._answers: list[Any] = []
        self._next = 0
        self._call: Call | None = None
        self._run()

    def answer(self, call: Call) -> Any:
        if self._next == len(self._answers):
            self._call = call
            raise _Abandoned
        answer = self._answers[self._next]
        self._next += 1
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def _run(self) -> None:
        if self._keeps is not None:
            vars(self._keeps).update(self._kept)
        self._next = 0
        self._call = None
        self._records._task = self
        try:
            result = self._function()
        except _Abandoned:
            self._records._task = None
            self._send()
        except StoreError:
            self._records._task = None
            self._failed()
        except PenstockError:
            self._records._task = None
            if not self._records.process.replaced:
                raise
            self._records.process.kill()  # it found out that it is of the past
        else:
            self._records._task = None
            self._done(result)

    def _send(self) -> None:
        process = self._records.process
        world = process.world
        call = self._call
        if call is None:
            raise AssertionError("a task waits for nothing")
        stream = f"{process} records"
        there = world.choices.choose(stream, WAYS)
        back = world.choices.choose(stream, WAYS)
        failure = world.choices.choose(stream, self._records.store.failures)
        kind = f"{self._what}: {call.kind}"

        def perform() -> None:
            if process.dead and world.choices.choose(f"{process} last call", seldom(500)):
                return  # it never left
            answer: Any
            if failure == "late" and call.kind in ("create", "delete"):
                late = world.choices.choose(stream, LATE)
                world.post(late, lambda: self._land(call))
                answer = StoreError("late")
            elif failure == "before":
                answer = StoreError("before")
            else:
                answer = self._records.store.perform(process, call)
                if call.kind in ("create", "delete"):
                    tell(world, process, call, answer, failure)
                if failure == "after":
                    answer = StoreError("after")
                    world.counts["records: outcome unknown"] += call.kind == "create"
            world.post(back, lambda: self._receive(answer), process, f"{kind} answered")

        process.after(0.0, lambda: world.post(there, perform), kind)

    def _land(self, call: Call) -> None:
        process = self._records.process
        answer = self._records.store.perform(process, call)
        process.world.counts["records: took effect late"] += 1
        tell(process.world, process, call, answer, "late")

    def _receive(self, answer: Any) -> None:
        self._answers.append(answer)
        self._run()


def tell(world: World, process: Process, call: Call, answer: object, failure: str) -> None:
    if world.trace is None or not call.name.startswith("decisions/"):
        return
    lost = ", but hears an error" if failure else ""
    epoch = int(call.name.removeprefix("decisions/"))
    if call.kind == "create":
        outcome = "records" if answer else "would record, but there is a record:"
        world.tell(process, f"{outcome} {plain(Decision.from_bytes(call.value))}{lost}")
    else:
        world.tell(process, f"deletes the record of epoch {epoch}{lost}")
