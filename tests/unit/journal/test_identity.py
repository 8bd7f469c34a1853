"""A journal's identity: made once, kept through moves and damage, and of nobody else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.checksum import checksum
from penstock.journal import Collection, open_store
from tests.unit.journal.journal_files import (
    JOURNAL,
    Writer,
    append,
    ids_of,
    journal_folder,
    open_numbers,
    segments,
)

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.journal import OpenStore

OLD_HEAD_BYTES = 192
OPENED_TWICE = """
import sys
from penstock.journal import open_store
store = open_store(sys.argv[1])
sys.stdin.readline()
list(store.read("numbers/000", 0))
print(store.probe("numbers/000").identity)
"""


def identity_of(store: OpenStore) -> str:
    """All who tell it agree."""
    (journal,) = store.journals("numbers")
    probe = store.probe(JOURNAL)
    assert probe.identity == journal.identity
    assert len(probe.identity) == 32
    return probe.identity


def test_it_stays_and_another_journal_has_another(tmp_path: Path) -> None:
    store = open_numbers(tmp_path, segment_bytes_max=500, durability="buffered")
    writer = Writer()
    found = set()
    for number in range(20):
        append(store, writer.documents([number]))
        found.add(identity_of(store))
    assert len(segments(tmp_path)) > 3
    store.drop_before(JOURNAL, 15)
    store.suspend(JOURNAL)
    found.add(identity_of(store))
    found.add(identity_of(open_store(tmp_path)))
    journal_folder(tmp_path).rename(tmp_path / "away")
    assert store.journals("numbers") == []
    (tmp_path / "away").rename(journal_folder(tmp_path))
    found.add(identity_of(store))
    (identity,) = found
    shutil.rmtree(journal_folder(tmp_path))
    append(store, Writer().documents([7]))
    assert identity_of(store) != identity
    assert identity_of(open_store(tmp_path)) == identity_of(store)


@pytest.mark.parametrize("at", [None, *range(OLD_HEAD_BYTES, OLD_HEAD_BYTES + 32)])
def test_it_outlives_its_head(tmp_path: Path, at: int | None) -> None:
    """Whichever byte of the record is damaged, or the whole file is lost."""
    store = open_numbers(tmp_path, durability="buffered")
    append(store, Writer().documents([1]))
    identity = identity_of(store)
    head = journal_folder(tmp_path) / "head"
    if at is None:
        head.unlink()
    else:
        data = bytearray(head.read_bytes())
        data[at] ^= 0x40
        head.write_bytes(data)
    assert [one.identity for one in open_store(tmp_path).journals("numbers")] == [identity]
    opened = open_store(tmp_path)
    assert ids_of(opened) == [1]
    assert identity_of(opened) == identity
    segments(tmp_path)[0].write_bytes(b"")  # from here on the head alone has it
    assert [one.identity for one in open_store(tmp_path).journals("numbers")] == [identity]


def _make_old(folder: Path) -> None:
    """As it was before there were identities."""
    os.truncate(journal_folder(folder) / "head", OLD_HEAD_BYTES)
    (path,) = segments(folder)
    header = path.read_bytes()
    # A segment without one, of the same length, and with its own checksum.
    begin = header.index(b'"identity": "') + len(b'"identity": "')
    text_at, text_bytes = 24, int.from_bytes(header[12:16], "little")
    text = header[text_at : text_at + text_bytes]
    text = text[: begin - text_at] + b'"' + text[begin - text_at + 33 :] + b" " * 32
    path.write_bytes(
        header[:16] + checksum(text).to_bytes(8, "little") + text + header[text_at + text_bytes :]
    )


def test_an_older_journal_gets_one_that_all_agree_upon(tmp_path: Path) -> None:
    store = open_numbers(tmp_path, durability="buffered")
    append(store, Writer().documents([1]))
    made = identity_of(store)
    _make_old(tmp_path)
    head = journal_folder(tmp_path) / "head"
    listed = open_store(tmp_path).journals("numbers")[0].identity
    assert listed != made
    assert head.stat().st_size == OLD_HEAD_BYTES, "who lists does not write"
    opened = open_store(tmp_path)
    assert ids_of(opened) == [1]
    assert identity_of(opened) == listed
    assert head.stat().st_size == OLD_HEAD_BYTES + 32
    shutil.rmtree(journal_folder(tmp_path))
    append(open_store(tmp_path), Writer().documents([1]))
    assert open_store(tmp_path).journals("numbers")[0].identity != listed


def test_who_opens_an_older_journal_at_once_agrees(tmp_path: Path) -> None:
    append(open_numbers(tmp_path, durability="buffered"), Writer().documents([1]))
    _make_old(tmp_path)
    command = [sys.executable, "-c", OPENED_TWICE, str(tmp_path)]
    both = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    found = [one.communicate("\n", timeout=120)[0].strip() for one in both]
    assert found == [identity_of(open_store(tmp_path))] * 2


def test_a_journal_that_is_replaced_while_it_is_read_is_found_by_others(tmp_path: Path) -> None:
    store = open_numbers(tmp_path, segment_bytes_max=200, durability="buffered")
    writer = Writer()
    for number in range(5):
        append(store, writer.documents([number]))
    reading = store.read(JOURNAL, 0)
    next(reading)  # it has the journal open
    first = identity_of(store)
    shutil.rmtree(journal_folder(tmp_path))
    append(store, Writer().documents([7]))
    assert identity_of(store) != first
    assert ids_of(store) == [7]
    reading.close()  # type: ignore[attr-defined]
    assert ids_of(store) == [7], "and what it lets go of is not theirs"


@pytest.mark.parametrize("kind", ["outside", "transaction"])
def test_a_rollback_in_a_journal_that_was_made_anew(tmp_path: Path, kind: str) -> None:
    """It names the last commit there, and none of the journal before: else no reader would know
    what to make of it."""
    store = open_numbers(tmp_path, durability="buffered")
    with store.producer() as producer:
        if kind == "outside":
            producer.append("numbers", [{"id": 1}])
        else:
            with producer.transaction() as transaction:
                transaction.append("numbers", [{"id": 1}])
        shutil.rmtree(journal_folder(tmp_path))
        for id_ in (2, 3):
            transaction = producer.transaction()
            transaction.append("numbers", [{"id": id_}])
            transaction.rollback()
        producer.append("numbers", [{"id": 4}])
        assert store.frontier("numbers").offsets.tolist() == [-5], "it is sequenced to its end"


def test_a_frontier_asks_for_nothing_of_a_journal_that_was_made_anew(tmp_path: Path) -> None:
    """Acknowledgements in other journals still hint at what was in the one before."""
    store = open_store(tmp_path, durability="buffered")
    store.create(Collection.define("parts", "id BIGINT NOT NULL, p STRING", "id", "p"))
    with store.producer() as producer:
        for id_ in range(2):
            with producer.transaction() as transaction:
                transaction.append("parts", [{"id": id_, "p": "a"}, {"id": id_, "p": "b"}])
        shutil.rmtree(tmp_path / "journals" / "parts" / "p=a+000")
        with store.producer() as other:
            other.append("parts", [{"id": 3, "p": "a"}])
        frontier = store.frontier("parts")
        assert [len(journal.producers) for journal in frontier.journals()] == [1, 1]
        with producer.transaction() as transaction:
            transaction.append("parts", [{"id": 4, "p": "a"}, {"id": 4, "p": "b"}])
        frontier = store.frontier("parts")
        assert [len(journal.producers) for journal in frontier.journals()] == [2, 1]
        assert not frontier.unresolved_hints
