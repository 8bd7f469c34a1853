"""`penstock copy` between files: once after a crash at every step, and what is refused."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from penstock.cli import copying
from penstock.cli.app import app
from penstock.cli.copying import Step
from penstock.journal import Collection, open_store
from penstock.journal.documents import read_documents

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.journal import OpenStore

pytestmark = pytest.mark.slow

BOTH = ("orders", "payments")


class Copying:
    """Two collections of a source, which transactions write to together."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        with self.source() as store:
            for name in BOTH:
                schema = "id BIGINT NOT NULL, part INT"
                store.create(Collection.define(name, schema, "id", partition_by="part"))

    def source(self) -> OpenStore:
        return open_store(self.folder / "source", durability="buffered")

    def write(self, transactions: int) -> None:
        with self.source() as store, store.producer() as producer:
            for _ in range(transactions):
                with producer.transaction() as transaction:
                    for name in BOTH:
                        row = {"id": self.count, "part": self.count % 3}
                        transaction.append(name, [row, row])
                self.count += 1

    def copy(self, *more: str, code: int = 0, to: str = "target", name: str = "copy") -> Result:
        arguments = ["copy", str(self.folder / "source"), str(self.folder / to), "--name", name]
        arguments += [part for each in BOTH for part in ("--collection", each)]
        arguments += ["--folder", str(self.folder / "under-way"), "--epoch-seconds", "0.01", *more]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == code, result.output
        return result

    def seen(self) -> list[Counter[int]]:
        with open_store(self.folder / "target") as store:
            found = []
            for name in BOTH:
                ids: Counter[int] = Counter()
                for cut in store.cut([one.name for one in store.journals(name)]):
                    for part in read_documents(store, cut):
                        ids.update(map(int, part.documents.column("id").to_numpy()))
                found.append(ids)
            return found

    def expected(self) -> list[Counter[int]]:
        return [Counter(dict.fromkeys(range(self.count), 2))] * 2


@pytest.fixture
def copied(tmp_path: Path) -> Copying:
    return Copying(tmp_path)


def killed(work: Callable[[], object], step: Step) -> None:
    """Does the work in a process that dies when it comes to the step with documents."""
    child = os.fork()
    if not child:
        has_read = False  # the first epoch of a run may be empty

        def reached(at: Step) -> None:
            nonlocal has_read
            has_read = has_read or at is Step.READ
            if has_read and at is step:
                os.kill(os.getpid(), signal.SIGKILL)

        copying.reached = reached  # type: ignore[assignment] # its argument has another name
        try:
            work()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, f"it did not come to {step}"


def test_after_a_crash_at_any_step_each_document_is_there_once(copied: Copying) -> None:
    copied.write(5)
    copied.copy("--create")
    assert copied.seen() == copied.expected()
    for step in Step:
        copied.write(3)
        before = copied.count - 3
        killed(copied.copy, step)
        orders, payments = copied.seen()
        assert orders == payments, f"a transaction is torn, killed at {step}"
        assert len(orders) in (before, copied.count)
        copied.write(1)
        copied.copy()
        assert copied.seen() == copied.expected(), f"killed at {step}"


def test_a_copy_goes_on_where_it_ended_and_says_how_much(copied: Copying) -> None:
    copied.write(4)
    assert "16 documents in all" in copied.copy("--create").output
    copied.write(1)
    said = json.loads(copied.copy("--json").stdout)
    assert (said["documents"], said["new_documents"], said["caught_up"]) == (20, 4, True)
    with open_store(copied.folder / "target") as store:
        made = store.collection("orders")
        assert (made.key, made.partition_by) == (("id",), ("part",))
        assert [one.labels for one in store.journals("orders")] == [
            {"part": f"%_{part}"} for part in range(3)
        ]


def test_a_folder_of_another_copy_is_refused(copied: Copying) -> None:
    copied.write(1)
    copied.copy("--create")
    refused = copied.copy("--create", code=1, to="elsewhere").output
    assert "knows of no copy 'copy'" in refused
    assert "belongs to another one" in refused
    assert "which is not in" in copied.copy("--folder", str(copied.folder / "new"), code=1).output
    other = [str(copied.folder / "source"), str(copied.folder / "target"), "--collection", "orders"]
    result = CliRunner().invoke(app, ["copy", *other, "--folder", str(copied.folder / "under-way")])
    assert "is one of orders, payments from" in result.output
    with (
        open_store(copied.folder / "target") as store,
        store.producer("mine") as producer,
        producer.transaction() as transaction,
    ):
        transaction.position("line 7")
    assert "not one of `penstock copy`" in copied.copy(code=1, name="mine").output
    assert copied.seen() == copied.expected()


def test_what_the_target_cannot_take_is_refused(copied: Copying) -> None:
    copied.write(1)
    assert "there is no Penstock store" in copied.copy(code=1).output
    with open_store(copied.folder / "target") as store:
        assert "no collection 'orders'" in copied.copy(code=1).output
        for name in BOTH:
            store.create(Collection.define(name, "id BIGINT NOT NULL", "id"))
    assert "column 'part': the collection has no such column" in copied.copy(code=1).output
    assert copied.seen() == [Counter(), Counter()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a", "a/"), "are the same store"),
        (("a", "b", "--format", "json"), "--format is for a copy between topics and files"),
        (("a", "b", "--schema", "id INT"), "--schema goes with --format json"),
        (("kafka://b:1", "b", "--format", "json"), "--format json needs --schema"),
        (("a", "b", "--key", "id"), "--key goes with --create"),
        (("a", "kafka://b:1", "--create"), "topics are made by Kafka's own tools"),
        (("a", "b", "--collection", "c"), "a collection is named twice"),
    ],
)
def test_a_command_that_means_nothing_is_not_understood(
    arguments: tuple[str, ...], words: str
) -> None:
    given = ["copy", *arguments, "--collection", "c", "--folder", "f"]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert words in result.output
