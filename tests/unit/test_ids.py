"""Producers, clocks, flags and the UUIDs that carry them."""

from __future__ import annotations

import datetime
import pickle
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigurationError
from penstock.ids import (
    CLOCK_FLOOR,
    CLOCK_MAX,
    CLOCK_NONE,
    CLOCK_TICK,
    CLOCK_UNIX_EPOCH,
    FLAG_VALID,
    FLAGS_MAX,
    Id,
    InvalidIdError,
    Kind,
    Producer,
    clock_delay,
    clock_duration,
    clock_elapsed,
    clock_from_datetime,
    clock_from_unix,
    clock_tick,
    clock_to_datetime,
    clock_to_unix,
    clock_update,
    kind_of,
)

clocks = st.one_of(
    st.integers(0, CLOCK_MAX),
    st.integers(0, 1_000),
    st.integers(CLOCK_MAX - 1_000, CLOCK_MAX),
    st.integers(CLOCK_UNIX_EPOCH - 1_000, CLOCK_UNIX_EPOCH + 1_000),
)
producers = st.binary(min_size=6, max_size=6).map(Producer)
ids = st.builds(Id, producer=producers, clock=clocks, flags=st.integers(0, FLAGS_MAX))


# Producers


@pytest.mark.parametrize(
    ("digits", "number"),
    [
        ("090607050309", 650214914308767744),
        ("010000000001", 72057594037993472),
        ("030000000002", 216172782113914880),
        ("ffffffffffff", -65536),
    ],
)
def test_producer_is_the_high_six_bytes_of_an_int64(digits: str, number: int) -> None:
    producer = Producer.for_writing(bytes.fromhex(digits))
    assert producer == Producer.from_hex(digits)
    assert str(producer) == digits
    assert producer.int64 == number
    assert Producer.from_int64(number) == producer


def test_producer_without_multicast_bit_may_be_read_but_not_write() -> None:
    assert Producer.from_hex("080000000000").int64 == 0x0800_0000_0000_0000
    with pytest.raises(InvalidIdError, match="080000000000 may not write: its multicast bit"):
        Producer.for_writing(bytes.fromhex("080000000000"))


@pytest.mark.parametrize("raw", [b"", b"12345", b"1234567"])
def test_producer_of_wrong_length_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidIdError, match=f"6 bytes, not {len(raw)}"):
        Producer(raw)
    with pytest.raises(InvalidIdError, match=f"6 bytes, not {len(raw)}"):
        Producer.from_hex(raw.hex())


def test_producer_from_bad_hex_is_refused_by_name() -> None:
    with pytest.raises(InvalidIdError, match="12 hexadecimal digits, not 'zz0000000000'"):
        Producer.from_hex("zz0000000000")


@pytest.mark.parametrize("number", [1, 0x8000, -1, 2**63, -(2**63) - 2**16])
def test_producer_from_int64_that_holds_none_is_refused(number: int) -> None:
    with pytest.raises(InvalidIdError, match=f"{number} is not a producer"):
        Producer.from_int64(number)


@given(st.integers(-(2**47), 2**47 - 1).map(lambda high: high << 16))
def test_int64_to_producer_and_back(number: int) -> None:
    assert Producer.from_int64(number).int64 == number


@given(producers, producers)
def test_producers_survive_int64_and_are_ordered_by_bytes(one: Producer, other: Producer) -> None:
    assert Producer.from_int64(one.int64) == one
    assert -(2**63) <= one.int64 < 2**63
    assert (one < other) == (one.raw < other.raw)
    assert (one == other) == (one.int64 == other.int64)


def test_random_producers_may_write_and_differ() -> None:
    drawn = {Producer.random() for _ in range(100)}
    assert len(drawn) == 100
    assert all(Producer.for_writing(producer.raw) == producer for producer in drawn)


# Clocks


def test_clock_vectors() -> None:
    assert clock_from_unix(0, 0) == 0x1B21DD2138140000 == CLOCK_UNIX_EPOCH
    ten = clock_from_unix(10, 0)
    assert ten == 0x1B21DD2197721000
    ticked = clock_tick(clock_tick(CLOCK_UNIX_EPOCH))
    assert ticked == 0x1B21DD2138140140
    assert clock_to_unix(ticked) == (0, 2_000)
    assert clock_update(ten, clock_from_unix(5)) == 0x1B21DD2197721000
    assert clock_from_unix(1567304621, 981273734) == 0x1E9CC5F83FC2F810
    assert clock_to_unix(0x1E9CC5F83FC2F810) == (1567304621, 981273700)
    assert clock_to_unix(0) == (0, 0)
    assert clock_to_unix(100) == (0, 16)
    assert clock_duration(3) == 480_000_000


@pytest.mark.parametrize(("ticks", "nanoseconds"), [(1, 1_000), (2, 2_000), (18, 18_000)])
def test_ticks_are_microseconds(ticks: int, nanoseconds: int) -> None:
    begin = clock = clock_from_unix(10)
    for _ in range(ticks):
        clock = clock_tick(clock)
    assert clock_to_unix(clock) == (10, nanoseconds)
    assert clock_elapsed(clock, begin) == (0, nanoseconds)
    assert clock & 15 == 0


def test_no_clock_is_not_the_unix_epoch_although_both_print_zero() -> None:
    assert CLOCK_NONE < CLOCK_FLOOR < CLOCK_UNIX_EPOCH
    assert clock_to_unix(CLOCK_NONE) == clock_to_unix(CLOCK_UNIX_EPOCH) == (0, 0)


@given(st.integers(-11_000_000_000, 100_000_000_000), st.integers(0, 999_999_999))
def test_clock_of_a_moment_truncates_to_100_ns(seconds: int, nanoseconds: int) -> None:
    clock = clock_from_unix(seconds, nanoseconds)
    assert 0 <= clock <= CLOCK_MAX
    assert clock & 15 == 0
    expected = (seconds, nanoseconds // 100 * 100) if seconds >= 0 else (0, 0)
    assert clock_to_unix(clock) == expected


@pytest.mark.parametrize("seconds", [-12_219_292_801, 103_072_857_661])
def test_moment_that_no_clock_can_say_is_refused(seconds: int) -> None:
    with pytest.raises(InvalidIdError, match=f"no clock can say {seconds} s"):
        clock_from_unix(seconds)


def test_first_and_last_moment_of_clocks() -> None:
    assert clock_from_unix(-12_219_292_800) == 0
    assert clock_from_unix(103_072_857_660, 684_697_500) == CLOCK_MAX - 15


def test_clock_of_a_datetime_and_back() -> None:
    moment = datetime.datetime(
        2026, 3, 1, 14, 0, 0, 123_456, tzinfo=datetime.timezone(datetime.timedelta(hours=2))
    )
    clock = clock_from_datetime(moment)
    assert clock == clock_from_unix(1772366400, 123_456_000)
    assert clock_to_datetime(clock) == moment
    assert clock_to_datetime(clock).utcoffset() == datetime.timedelta(0)


def test_datetime_without_time_zone_is_refused() -> None:
    with pytest.raises(InvalidIdError, match="has no time zone"):
        clock_from_datetime(datetime.datetime(2026, 3, 1))


@given(
    st.datetimes(
        datetime.datetime(1970, 1, 1),
        datetime.datetime(5235, 12, 31),
        timezones=st.just(datetime.UTC),
    )
)
def test_every_datetime_clocks_can_say_comes_back(moment: datetime.datetime) -> None:
    assert clock_to_datetime(clock_from_datetime(moment)) == moment


def test_duration_does_not_start_in_1582() -> None:
    """Adding a clock where a duration is due sends readers into the far future."""
    begin = clock_from_unix(1_000)
    assert clock_delay(begin, clock_duration(3)) == clock_from_unix(1_003)
    assert clock_delay(begin, clock_from_unix(3)) != clock_from_unix(1_003)
    assert clock_from_unix(3) - clock_duration(3) == CLOCK_UNIX_EPOCH


@pytest.mark.parametrize(("seconds", "nanoseconds"), [(-1, 0), (0, -1)])
def test_negative_duration_is_refused(seconds: int, nanoseconds: int) -> None:
    with pytest.raises(InvalidIdError, match="a duration is not negative"):
        clock_duration(seconds, nanoseconds)


@given(st.integers(0, 10_000_000_000), st.integers(0, 1_000_000), st.integers(0, 9_999_999))
def test_delay_and_elapsed_are_inverse(begin: int, seconds: int, units: int) -> None:
    clock = clock_from_unix(begin)
    later = clock_delay(clock, clock_duration(seconds, units * 100))
    assert later == clock_from_unix(begin + seconds, units * 100)
    assert clock_elapsed(later, clock) == (seconds, units * 100)


@given(clocks, st.integers(0, 2**66))
def test_delay_stops_at_the_last_clock(clock: int, duration: int) -> None:
    delayed = clock_delay(clock, duration)
    assert clock <= delayed <= CLOCK_MAX
    assert delayed in (clock + duration, CLOCK_MAX)


@given(clocks, clocks)
def test_clocks_never_go_back(clock: int, observed: int) -> None:
    updated = clock_update(clock, observed)
    assert updated in (clock, observed)
    assert updated >= clock
    assert updated >= observed
    assert (clock_elapsed(clock, observed) == (0, 0)) == (clock <= observed)


@given(clocks)
def test_tick_moves_on_or_refuses_at_the_end_of_time(clock: int) -> None:
    if clock + CLOCK_TICK <= CLOCK_MAX:
        assert clock_tick(clock) == clock + CLOCK_TICK
    else:
        with pytest.raises(InvalidIdError, match="cannot tick: it is at the end of time"):
            clock_tick(clock)


def test_tick_reaches_the_last_clock_exactly() -> None:
    assert clock_tick(CLOCK_MAX - CLOCK_TICK) == CLOCK_MAX
    with pytest.raises(InvalidIdError, match="cannot tick"):
        clock_tick(CLOCK_MAX - CLOCK_TICK + 1)


# Flags


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        (0, Kind.OUTSIDE),
        (1, Kind.CONTINUE),
        (2, Kind.ACK),
        (3, Kind.CONTINUE),
        (4, Kind.OUTSIDE),
        (FLAG_VALID, Kind.OUTSIDE),
        (FLAG_VALID | 1, Kind.CONTINUE),
        (FLAG_VALID | 2, Kind.ACK),
    ],
)
def test_kind_of_flags(flags: int, kind: Kind) -> None:
    assert kind_of(flags) is kind


@given(st.integers(0, 0xFFFF))
def test_only_the_two_low_bits_make_the_kind(flags: int) -> None:
    assert kind_of(flags) is kind_of(flags & 3)


# UUIDs


@pytest.mark.parametrize(
    ("text", "producer", "clock", "flags"),
    [
        ("45566778-2334-1112-a002-010000000001", "010000000001", 0x1122334455667788, 2),
        ("01020304-0302-1504-8002-030000000002", "030000000002", 0x5040302010203040, 2),
        ("15141312-1716-1918-8402-050000000003", "050000000003", 0x9181716151413121, 2),
        ("00000006-0000-1000-9002-010000000001", "010000000001", 0x64, 2),
        ("0000000c-0000-1000-a002-030000000002", "030000000002", 0xC8, 2),
        ("1381400a-1dd2-11b2-8000-010000000001", "010000000001", 0x1B21DD21381400A0, 0),
        ("13814014-1dd2-11b2-8001-010000000001", "010000000001", 0x1B21DD2138140140, 1),
        ("13814000-1dd2-11b2-8401-030000000002", "030000000002", 0x1B21DD2138140001, 1),
        ("83fc2f95-cc5f-11e9-82aa-090607050309", "090607050309", 0x1E9CC5F83FC2F950, 682),
        ("83fc2f81-cc5f-11e9-8aaa-090607050309", "090607050309", 0x1E9CC5F83FC2F812, 682),
        ("ffffffff-ffff-1fff-bfff-ffffffffffff", "ffffffffffff", 0xFFFFFFFFFFFFFFFF, 1023),
        ("00000000-0000-1000-8000-010000000000", "010000000000", 0x0, 0),
        ("04afc000-833b-11ee-8001-0d0102030405", "0d0102030405", 0x1EE833B04AFC0000, 1),
    ],
)
def test_uuid_vectors_both_ways(text: str, producer: str, clock: int, flags: int) -> None:
    identity = Id(Producer.from_hex(producer), clock, flags)
    assert str(identity.to_uuid()) == text
    assert Id.from_uuid(text) == identity
    assert Id.from_uuid(uuid.UUID(text)) == identity


@pytest.mark.parametrize(
    ("text", "nanoseconds", "clock_sequence"),
    [
        ("83fc2f95-cc5f-11e9-82aa-090607050309", 981_275_700, 682),
        ("83fc2f81-cc5f-11e9-8aaa-090607050309", 981_273_700, 2730),
    ],
)
def test_other_readers_of_uuids_see_the_same_time(
    text: str, nanoseconds: int, clock_sequence: int
) -> None:
    value = Id.from_uuid(text).to_uuid()
    assert value.time << 4 == clock_from_unix(1567304621, nanoseconds)
    assert value.clock_seq == clock_sequence
    assert value.variant == uuid.RFC_4122
    assert value.version == 1


@given(ids)
def test_id_to_uuid_and_back(identity: Id) -> None:
    value = identity.to_uuid()
    assert value.version == 1
    assert value.variant == uuid.RFC_4122
    assert Id.from_uuid(value) == identity
    assert Id.from_uuid(str(value)) == identity


@given(st.integers(0, 2**128 - 1))
def test_uuid_to_id_and_back(bits: int) -> None:
    value = uuid.UUID(int=bits & ~(0xF << 76) & ~(0b11 << 62) | 1 << 76 | 0b10 << 62)
    assert Id.from_uuid(value).to_uuid() == value


def test_uuid_that_cannot_be_parsed_is_refused_by_name() -> None:
    with pytest.raises(InvalidIdError, match="'not-a-uuid' is not a UUID"):
        Id.from_uuid("not-a-uuid")


@pytest.mark.parametrize("version", [0, 2, 3, 4, 5, 6, 7, 8, 15])
def test_uuid_of_another_version_is_refused_by_name(version: int) -> None:
    value = uuid.UUID(int=0x0102030405060708_8000_010000000001 & ~(0xF << 76) | version << 76)
    with pytest.raises(InvalidIdError, match=f"{value} is not a version 1 .* version is {version}"):
        Id.from_uuid(value)


@pytest.mark.parametrize(
    "value", ["00000000-0000-0000-0000-000000000000", "9f8b6f0e-3f0c-4d0c-8a58-0d5a0c3c7f11"]
)
def test_nil_and_random_uuids_are_refused(value: str) -> None:
    with pytest.raises(InvalidIdError, match="is not a version 1 UUID"):
        Id.from_uuid(value)


@pytest.mark.parametrize("flags", [0x400, FLAG_VALID, FLAG_VALID | 1, -1])
def test_flags_that_do_not_fit_a_uuid_are_refused(flags: int) -> None:
    with pytest.raises(InvalidIdError, match="do not fit a UUID: at most 0x3ff"):
        Id(Producer.from_hex("010000000001"), 1, flags).to_uuid()


@pytest.mark.parametrize("clock", [-1, CLOCK_MAX + 1])
def test_clock_that_does_not_fit_a_uuid_is_refused(clock: int) -> None:
    with pytest.raises(InvalidIdError, match="is not an unsigned 64-bit number"):
        Id(Producer.from_hex("010000000001"), clock, 0).to_uuid()


def test_uuid_text_order_is_not_clock_order() -> None:
    older, newer = (
        "ffffffff-0000-1000-8000-010000000000",
        "00000000-0001-1000-8000-010000000000",
    )
    assert older > newer
    assert Id.from_uuid(older).clock == 0xFFFFFFFF0
    assert Id.from_uuid(newer).clock == 0x1000000000
    later, earlier = (
        "1381400a-1dd2-11b2-8000-010000000001",
        "00000006-0000-1000-9002-010000000001",
    )
    assert later > earlier
    assert Id.from_uuid(later).clock > Id.from_uuid(earlier).clock


# Pickling


@given(ids)
def test_ids_pickle(identity: Id) -> None:
    assert pickle.loads(pickle.dumps(identity)) == identity


def test_errors_pickle_and_are_configuration_errors() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Id.from_uuid("not-a-uuid")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is InvalidIdError
    assert str(copy) == str(caught.value)
    assert copy.args == caught.value.args
