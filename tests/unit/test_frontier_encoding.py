"""Frontiers as bytes and as JSON: what goes in comes out, and what was damaged is refused."""

from __future__ import annotations

import json
import pickle
import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checksum import checksum
from penstock.errors import ConfigurationError, CorruptStorageError
from penstock.frontier import (
    CorruptFrontierError,
    Frontier,
    FrontierTextError,
    JournalFrontier,
    ProducerFrontier,
    apply_name_delta,
    decode_chunks,
    encode_chunks,
    from_json,
    name_delta,
    to_json,
)
from penstock.ids import Producer

if TYPE_CHECKING:
    from collections.abc import Callable

A, B = Producer.from_hex("01aabbccddee"), Producer.from_hex("ff0000000001")
HEADER_BYTES = 28

# é, è and ê share their first byte, and the last two characters their first three.
names = st.one_of(st.text(alphabet="aéèê😀😁", max_size=6), st.text(max_size=6))
numbers = st.integers(0, 2**64 - 1)
signed = st.integers(-(2**63) + 1, 2**63 - 1)
sums = st.integers(-(2**63), 2**63 - 1)
producers = st.binary(min_size=6, max_size=6).map(Producer)
entry_values = st.tuples(numbers, numbers, signed)
bindings = st.integers(0, 2**16 - 1)
clock_maps = st.dictionaries(bindings, numbers, max_size=3)


@st.composite
def frontiers(draw: st.DrawFn) -> Frontier:
    journals = []
    for name, binding in sorted(draw(st.sets(st.tuples(names, bindings), max_size=8))):
        rows = draw(st.dictionaries(producers, entry_values, max_size=3))
        entries = tuple(ProducerFrontier(one, *rows[one]) for one in sorted(rows))
        journals.append(JournalFrontier(name, binding, entries, draw(sums), draw(sums)))
    return Frontier.of(
        journals,
        flushed_lsn=draw(st.lists(numbers, max_size=3)),
        backfill_begin=draw(clock_maps),
        backfill_complete=draw(clock_maps),
        gap_floor=draw(clock_maps),
    )


SMALL = Frontier.of(
    [
        JournalFrontier("orders/è", 1, (ProducerFrontier(A, 2**63, 0, 12),), 0, -4),
        JournalFrontier("orders/é", 0, (ProducerFrontier(A, 5, 9, -7), ProducerFrontier(B, 1)), 3),
        JournalFrontier("orders/ê", 1),
    ],
    flushed_lsn=[1, 2],
    backfill_begin={0: 5},
    backfill_complete={1: 6},
    gap_floor={2: 7},
)


# --- names ---


@given(names, names)
def test_a_name_comes_back_from_its_difference(previous: str, name: str) -> None:
    truncate, suffix = name_delta(previous.encode(), name.encode())
    assert apply_name_delta(previous.encode(), truncate, suffix) == name.encode()
    # Both sides of the cut are whole characters.
    assert previous.encode()[: len(previous.encode()) - truncate].decode() + suffix.decode() == name


@pytest.mark.parametrize(
    ("previous", "name", "truncate", "suffix"),
    [
        ("", "a/b", 0, "a/b"),
        ("a/b", "a/b", 0, ""),
        ("a/b", "a/bc", 0, "c"),
        ("a/b", "a/c", 1, "c"),
        ("a/b", "", 3, ""),
        ("xé", "xè", 2, "è"),  # one byte more is shared, but it is half a character
        ("x😀", "x😁y", 4, "😁y"),
        ("é", "éé", 0, "é"),
    ],
)
def test_the_difference_of_names(previous: str, name: str, truncate: int, suffix: str) -> None:
    assert name_delta(previous.encode(), name.encode()) == (truncate, suffix.encode())


@pytest.mark.parametrize(
    ("truncate", "expected"),
    [(0, b"abcx"), (1, b"abx"), (3, b"x"), (4, b"x"), (2**31 - 1, b"x"), (-1, b"x"), (-9, b"x")],
)
def test_a_cut_that_is_negative_or_too_long_discards_all(truncate: int, expected: bytes) -> None:
    assert apply_name_delta(b"abc", truncate, b"x") == expected


# --- chunks ---


@given(frontiers(), st.integers(1, 4))
def test_chunks_come_back_as_the_frontier(frontier: Frontier, journals_per_chunk_max: int) -> None:
    chunks = list(encode_chunks(frontier, journals_per_chunk_max))
    assert len(chunks) == -(-frontier.journal_count // journals_per_chunk_max) + 1
    assert decode_chunks(chunks) == frontier


def test_a_large_frontier_comes_back() -> None:
    frontier = Frontier.of(
        [
            JournalFrontier(f"orders/{index:05}", 3, (ProducerFrontier(A, index),))
            for index in range(5_000)
        ]
    )
    chunks = list(encode_chunks(frontier, 64))
    assert len(chunks) == 80
    assert decode_chunks(chunks) == frontier
    # 12 bytes of name each would be 60 000; the first of a chunk is whole, the others are ends.
    assert sum(map(len, chunks)) < 5_000 * (30 + 32 + 4)


def test_nothing_is_one_chunk() -> None:
    (chunk,) = encode_chunks(Frontier.of())
    assert decode_chunks([chunk]) == Frontier.of()


def test_a_chunk_must_have_room_for_a_journal() -> None:
    with pytest.raises(ConfigurationError, match="at least one journal"):
        list(encode_chunks(SMALL, 0))


def refused(chunks: list[bytes]) -> CorruptFrontierError:
    with pytest.raises(CorruptFrontierError) as raised:
        decode_chunks(chunks)
    assert isinstance(raised.value, CorruptStorageError)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    return raised.value


def test_a_chunk_cut_anywhere_is_refused() -> None:
    chunks = list(encode_chunks(SMALL, 2))
    for index, chunk in enumerate(chunks):
        for length in range(len(chunk)):
            error = refused([*chunks[:index], chunk[:length], *chunks[index + 1 :]])
            assert error.sequence == index
            assert "header alone" in str(error) or "its body has" in str(error)
        assert "should have" in str(refused([*chunks[:index], chunk + b"\0", *chunks[index + 1 :]]))


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_a_flipped_byte_is_refused_wherever_it_is(flip: int) -> None:
    chunks = list(encode_chunks(SMALL, 2))
    for index, chunk in enumerate(chunks):
        for at in range(len(chunk)):
            damaged = bytearray(chunk)
            damaged[at] ^= flip
            error = refused([*chunks[:index], bytes(damaged), *chunks[index + 1 :]])
            assert error.sequence == index
            if at >= HEADER_BYTES:
                assert "its checksum is" in str(error)


def test_missing_repeated_and_moved_chunks_are_refused() -> None:
    chunks = list(encode_chunks(SMALL, 1))
    assert len(chunks) == 4
    for index in range(3):
        missing = refused(chunks[:index] + chunks[index + 1 :])
        assert missing.sequence == index
        assert f"numbered {index + 1}" in str(missing)
        repeated = refused(chunks[: index + 1] + chunks[index:])
        assert repeated.sequence == index + 1
        assert "missing, repeated or out of order" in str(repeated)
    assert "numbered 1" in str(refused([chunks[1], chunks[0], *chunks[2:]]))
    for length in range(4):
        assert str(refused(chunks[:length])) == (
            f"frontier chunk {length}: it is missing: the last chunk never came"
        )
    assert "after the last chunk" in str(refused([*chunks, chunks[-1]]))


def test_chunks_of_another_frontier_are_refused() -> None:
    other = Frontier.of([JournalFrontier("orders/ë", 0, (ProducerFrontier(A, 1),))])
    mine, theirs = list(encode_chunks(SMALL, 1)), list(encode_chunks(other, 1))
    for mixed in ([theirs[0], *mine[1:]], [*mine[:1], theirs[1]], [*mine[:2], theirs[0], mine[3]]):
        refused(mixed)
    assert "not those of its frontier" in str(refused([theirs[0], *mine[1:]]))
    assert "not those of its frontier" in str(refused([mine[0], theirs[1]]))
    assert "begins with b'PK" in str(refused([b"PK\x03\x04" + bytes(40)]))


def resealed(chunk: bytes, at: int, value: bytes) -> bytes:
    """A chunk that says something else and has the right checksum for it."""
    changed = chunk[:at] + value + chunk[at + len(value) :]
    header, body = changed[: HEADER_BYTES - 8], changed[HEADER_BYTES:]
    return header + struct.pack("<Q", checksum(header + body)) + body


def test_intact_chunks_that_no_encoder_writes_are_refused() -> None:
    (end,) = encode_chunks(Frontier.of())
    first, last = encode_chunks(Frontier.of([JournalFrontier("a", 0)]))
    assert "version 9" in str(refused([resealed(end, 4, b"\x09")]))
    assert "of kind 3" in str(refused([resealed(end, 5, b"\x03")]))
    assert "of kind 2 (and 1)" in str(refused([resealed(end, 6, b"\x01")]))
    counts = HEADER_BYTES + 4 + 8 + 8 + 8
    assert "should hold" in str(refused([resealed(end, counts, b"\x01")]))
    assert "should hold" in str(refused([resealed(first, HEADER_BYTES, b"\x02"), last]))
    suffix = len(first) - 1
    assert "not those of its frontier" in str(refused([resealed(first, suffix, b"b"), last]))
    length = struct.pack("<Q", len(end) - HEADER_BYTES + 1)
    assert "1 bytes too many" in str(refused([resealed(end + b"\0", 12, length)]))


def with_seal(journals: list[bytes], end: bytes) -> list[bytes]:
    seal = 0
    for chunk in journals:
        seal = checksum(struct.pack("<Q", seal) + chunk[:HEADER_BYTES])
    return [*journals, resealed(end, HEADER_BYTES + 4 + 8 + 8, struct.pack("<Q", seal))]


def test_chunks_that_break_a_rule_of_frontiers_are_refused() -> None:
    one = Frontier.of([JournalFrontier("a", 0), JournalFrontier("b", 0)])
    first, second, end = encode_chunks(one, 1)
    assert decode_chunks(with_seal([first, second], end)) == one
    repeated = with_seal([first, resealed(second, len(second) - 1, b"a")], end)
    assert "journal 1 ('a', binding 0) is not unique" in str(refused(repeated))
    not_text = with_seal([first, resealed(second, len(second) - 1, b"\xff")], end)
    assert "break a rule" in str(refused(not_text))


# --- JSON ---


@given(frontiers())
def test_json_comes_back_as_the_frontier(frontier: Frontier) -> None:
    assert from_json(to_json(frontier)) == frontier


def test_json_is_for_people() -> None:
    frontier = Frontier.of(
        [JournalFrontier("orders/é", 2, (ProducerFrontier(A, 0x1F, 0, -70),))],
        gap_floor={2: 0xABC},
    )
    assert to_json(frontier) == (
        '{"version": 1, "journals": [{"journal": "orders/é", "binding": 2, "producers": '
        '[{"producer": "01aabbccddee", "last_commit": "000000000000001f", "offset": -70}]}], '
        '"gap_floor": {"2": "0000000000000abc"}}'
    )
    assert from_json('{"version": 1}') == Frontier.of()


def changed(change: Callable[[Any], object]) -> str:
    document = json.loads(to_json(SMALL))
    change(document)
    return json.dumps(document)


def journal(index: int, **fields: object) -> str:
    return changed(lambda document: document["journals"][index].update(fields))


def entry(**fields: object) -> str:
    return changed(lambda document: document["journals"][1]["producers"][0].update(fields))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text is not JSON"),
        ("{", "the text is not JSON"),
        ("[" * 100_000, "the text cannot be read"),
        ('{"version": ' + "9" * 5_000 + "}", "the text cannot be read"),
        ('{"version": 1, "version": 1}', "has two fields 'version'"),
        ("[]", r"the frontier must be an object, not \[\]"),
        ("{}", "the frontier has no 'version'"),
        ('{"version": 2}', "is of version 2"),
        ('{"version": true}', "'version' of the frontier must be a whole number, not True"),
        ('{"version": 1, "gapfloor": {}}', "has fields that a frontier has not: gapfloor"),
        ('{"version": 1, "journals": {}}', "'journals' of the frontier must be a list"),
        ('{"version": 1, "journals": [1]}', "journal 0 must be an object, not 1"),
        ('{"version": 1, "flushed_lsn": [1, -1]}', "flushed_lsn 1 must be from 0"),
        ('{"version": 1, "gap_floor": [1]}', "'gap_floor' of the frontier must be an object"),
        ('{"version": 1, "gap_floor": {"01": "0"}}', "has '01' where a binding"),
        ('{"version": 1, "gap_floor": {"65536": "0"}}', "has '65536' where a binding"),
        ('{"version": 1, "gap_floor": {"1": 5}}', "binding 1 in 'gap_floor' .* 16 hexadecimal"),
        (journal(1, binding=-1), "'binding' of journal 1 must be from 0 to 65535, not -1"),
        (journal(1, binding=1.0), "'binding' of journal 1 must be a whole number, not 1.0"),
        (journal(1, journal=7), "'journal' of journal 1 must be text, not 7"),
        (journal(1, journal="\ud800"), "surrogates not allowed"),
        (journal(1, journal="orders/è", binding=1), r"'orders/è', binding 1\) is not unique"),
        (journal(1, journal="a"), r"journal 1 \('a', binding 0\) is not ordered"),
        (journal(1, offset=1), "journal 1 has fields that a frontier has not: offset"),
        (entry(producer="01"), "'producer' of producer 0 of journal 1 must be 12 hexadecimal"),
        (entry(producer="01 bb ccddee"), "must be 12 hexadecimal digits"),
        (entry(producer=str(B)), f"producer 1 \\({B}\\) of journal 'orders/é'.* is not unique"),
        (entry(last_commit="xyz"), "'last_commit' of producer 0 of journal 1 must be 16"),
        (entry(last_commit="0x00000000000001"), "must be 16 hexadecimal digits"),
        (entry(hinted_commit=None), "must be 16 hexadecimal digits, not None"),
        (entry(offset=2**63), "'offset' of producer 0 of journal 1 must be from"),
        (entry(offset="x" * 90), r"must be a whole number, not 'x{59}\.\.\."),
        (
            changed(lambda document: document["journals"][1]["producers"][0].pop("offset")),
            "producer 0 of journal 1 has no 'offset'",
        ),
    ],
)
def test_text_that_is_no_frontier_is_refused(text: str, message: str) -> None:
    with pytest.raises(FrontierTextError, match=message) as raised:
        from_json(text)
    assert isinstance(raised.value, ConfigurationError)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
