"""What Session and members tell each other: as it was said, and as `proto/` has it."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa
import pytest
from google.protobuf import json_format

from penstock.errors import RemoteProtocolError
from penstock.frontier import Frontier, JournalFrontier, ProducerFrontier
from penstock.ids import CLOCK_MAX, Producer
from penstock.shuffle import control
from penstock.shuffle.control import (
    ConsumedThrough,
    MemberFailed,
    RoomNeeded,
    decode_messages,
    encode_messages,
)
from penstock.shuffle.session.state import (
    AllReadsStarted,
    AskProgress,
    ListingAdded,
    ListingDone,
    ListingRemoved,
    Progressed,
    ReadEnded,
    RowsMissing,
    SliceOpened,
    SpansLeft,
    StartRead,
)
from penstock.shuffle.status import (
    Details,
    JournalStatus,
    MemberStatus,
    QueueStatus,
    Sent,
    SliceStatus,
    SpanStatus,
)
from penstock.watch.causes import Listing
from penstock.watch.standing import Seen
from tests.protobuf import compiled

if TYPE_CHECKING:
    from penstock.shuffle.control import Message

CONTROL = "penstock/shuffle/v1/control.proto"
PRODUCER = Producer.from_hex("0100deadbeef")
ENTRIES = (
    ProducerFrontier(PRODUCER, CLOCK_MAX - 1, hinted_commit=CLOCK_MAX, offset=-(2**60)),
    ProducerFrontier(Producer.from_hex("0300deadbeef"), 1),
)
FRONTIER = Frontier.of([JournalFrontier("orders/a=1", 0, ENTRIES)])
SLICE = SliceStatus(3, 2**40, 5, 7, 64, True, 1.7e9, (Sent(1, 9, 0.25), Sent(2, 0, 1.0)))
QUEUE = QueueStatus(10, 2, 4096, 2**33, 1, 2**40 + 1, False, True, 4)
DETAILS = Details(
    (JournalStatus("orders/a=1", 0, 5, 9, None), JournalStatus("orders/a=2", 1, 5, 9, 1.5)),
    (SpanStatus(str(PRODUCER), "orders/a=1", 0, 1.5, None, None),),
    1,
    "orders/a=1",
)
WAITS = (Seen(Listing(1, 0, 2, "orders"), 3, 1.5),)
MESSAGES: list[Message] = [
    StartRead(1, 0, 7, 2, "orders/a=1", ENTRIES, "5f", "orders/a=1@5f"),
    AllReadsStarted(1, 2),
    AskProgress(3, 1),
    ConsumedThrough(12, FRONTIER),
    SliceOpened(2, 0),
    ListingAdded(1, 0, 3, "orders/ü"),
    ListingRemoved(1, 0, 3, "orders/ü"),
    ListingDone(1, 0, 3),
    ReadEnded(1, 0, 7),
    SpansLeft(1, 0, 3, "orders/a=1@5f"),
    RowsMissing(1, 0, 7, 2**40, 2**40 + 1),
    Progressed(2, 1, FRONTIER),
    RoomNeeded(2),
    MemberFailed(2, "the disk is gone"),
    MemberFailed(2, "it does not parse", is_final=True),
    MemberStatus(
        1, 0, 4711, "host", SLICE, QUEUE, (Seen(Listing(1, 0, 2, "orders"), 3, 1.5),), DETAILS
    ),
    MemberStatus(1, 0, 4711, "host", SLICE, QUEUE, (), None),
]


def rows_of(messages: list[Message]) -> list[dict[str, Any]]:
    return encode_messages(messages).to_pylist()


def test_every_kind_is_here() -> None:
    kinds = {*get_args(control.ToMember), *get_args(control.FromMember)}
    assert {type(message) for message in MESSAGES} == kinds


def test_they_arrive_as_they_were_said() -> None:
    found = list(decode_messages(encode_messages(MESSAGES)))
    assert rows_of(found) == rows_of(MESSAGES)
    for message, said in zip(found, MESSAGES, strict=True):
        assert type(message) is type(said)
        if not isinstance(said, ConsumedThrough):  # which has no equality of its own
            assert message == said


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return compiled(CONTROL, tmp_path_factory.mktemp("protobuf"))


def test_other_languages_read_them_by_the_proto(messages: Any) -> None:
    for row in rows_of(MESSAGES):
        kind = getattr(messages, row["kind"])
        fields = json.loads(row["fields"])
        parsed = json_format.Parse(row["fields"], kind())  # which refuses what it does not know
        again = json_format.MessageToDict(
            parsed, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        assert as_said(again, fields) == fields, row["kind"]


def as_said(found: Any, said: Any) -> Any:
    """JSON of protobuf has numbers of 64 bits as text, and leaves out what is null."""
    if isinstance(said, dict):
        assert found.keys() <= said.keys()
        return {name: as_said(found.get(name), value) for name, value in said.items()}
    if isinstance(said, list):
        assert len(found) == len(said)
        return [as_said(one, other) for one, other in zip(found, said, strict=True)]
    if isinstance(said, int) and not isinstance(said, bool) and isinstance(found, str):
        return int(found)
    return found


@pytest.mark.parametrize(
    ("kind", "fields", "why"),
    [
        ("SliceOpened", '{"member": 1}', "lane"),
        ("SliceOpened", "not JSON", "not valid"),
        ("Unheard", "{}", "no such kind"),
        ("Progressed", '{"member": 1, "lane": 0}', "frontier is missing"),
        ("StartRead", '{"member": 1, "entries": [[]]}', "not valid"),
    ],
)
def test_what_is_none_of_them_is_refused(kind: str, fields: str, why: str) -> None:
    columns: list[Any] = [[kind], [fields], pa.array([None], pa.list_(pa.binary()))]
    batch = pa.RecordBatch.from_arrays([pa.array(each) for each in columns], schema=control.SCHEMA)
    with pytest.raises(RemoteProtocolError, match=why):
        list(decode_messages(batch))


MANY = tuple(
    ProducerFrontier(Producer((2**40 + number).to_bytes(6, "big")), 10**18 + number, 0, -5)
    for number in range(5_000)
)
LARGE: list[Message] = [
    StartRead(1, 0, 7, 2, "orders/a=1", MANY),
    ConsumedThrough(12, Frontier.of([JournalFrontier("orders/a=1", 0, MANY)])),
    Progressed(2, 1, Frontier.of([JournalFrontier("orders/a=2", 0, MANY[:2_000])])),
]


def frontier_of(message: Message) -> Any:
    match message:
        case StartRead():
            return message.entries
        case ConsumedThrough():
            return message.frontier
        case Progressed():
            return message.delta
        case _:
            raise AssertionError


def test_a_large_frontier_goes_in_parts_that_fit_any_frame(
    monkeypatch: pytest.MonkeyPatch, messages: Any
) -> None:
    monkeypatch.setattr(control, "PART_BYTES", 10_000)
    rows = encode_messages(LARGE).to_pylist()
    assert len(rows) > 20
    for row in rows:
        assert sum(map(len, row["frontier"])) <= 10_000
        assert len(row["fields"]) < 200
        json_format.Parse(row["fields"], getattr(messages, row["kind"])())


def test_parts_are_put_together_however_they_are_cut_and_mixed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads that send at the same time mix parts, and the transport cuts batches by rows."""
    monkeypatch.setattr(control, "PART_BYTES", 10_000)
    rng = random.Random(3)
    streams = [encode_messages([message]) for message in [*LARGE, *MESSAGES]]
    decoder = control.MessageDecoder()
    found: list[Message] = []
    at = [0] * len(streams)
    while left := [place for place, batch in enumerate(streams) if at[place] < batch.num_rows]:
        place = rng.choice(left)
        count = rng.randint(1, 3)
        found += decoder.decode(streams[place].slice(at[place], count))
        at[place] += count
    assert len(found) == len(streams)
    for said in LARGE:
        heard = [one for one in found if type(one) is type(said)]
        assert any(frontier_of(one) == frontier_of(said) for one in heard)


def test_a_peer_that_sends_parts_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "PART_BYTES", 10_000)
    monkeypatch.setattr(control, "PARTS_BYTES_MAX", 50_000)
    batch = encode_messages(LARGE[:1])
    with pytest.raises(RemoteProtocolError, match="does not finish"):
        list(control.MessageDecoder().decode(batch))
    monkeypatch.setattr(control, "PARTS_BYTES_MAX", 10**9)
    with pytest.raises(RemoteProtocolError, match="not valid"):
        list(control.MessageDecoder().decode(batch.slice(batch.num_rows - 1)))
