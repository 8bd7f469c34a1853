"""The state of a feed: as JSON, in sentences, and out of its folder."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import PenstockError, RemoteProtocolError
from penstock.watch import (
    FeedState,
    StateFormatError,
    StateMissingError,
    decode_state,
    encode_state,
    find_folders,
    load,
    load_spark,
)
from penstock.watch import causes as kinds
from penstock.watch.causes import KINDS, cause_of
from penstock.watch.encoding import encode_batches
from penstock.watch.explaining import explained
from penstock.watch.history import History, Point
from penstock.watch.loading import SILENT_SECONDS
from penstock.watch.standing import WAITS_MAX, Seen, Standing
from penstock.watch.state import (
    BindingState,
    ConsumerState,
    DiskState,
    EpochState,
    Flow,
    HeldBy,
    Journals,
    JournalState,
    MemberState,
    QueueState,
    RecoveryState,
    RestartEvent,
    Restarts,
    SliceState,
    SparkBatch,
    Transactions,
    TransactionState,
    WatermarkState,
)
from penstock.watch.wording import counted, lasting, listed, sized

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.watch.cause import Cause

NOW = 1_763_350_100.0
QUEUE = QueueState(0, 0, 0, None, DiskState(0, 2, is_pressed=False, overdrawn_bytes=0))

EXAMPLES: list[Cause] = [
    kinds.Starting((1, 2), on_spark=False),
    kinds.Restart("member 2 was killed by SIGKILL", 2, 1),
    kinds.Recovery(10, 20, 3),
    kinds.Listing(1, 0, 0, "orders"),
    kinds.Probing(1, 0, "orders/region=eu", 1),
    kinds.JournalLags(1, 0, "orders/region=eu", 0, 10, 30, 2),
    kinds.ReadDelay(1, 0, 0, "orders", 300.0, NOW + 5, 7),
    kinds.Credit(1, 0, 2, 0.0),
    kinds.HigherLane(1, 1, 100, 0, ("2.0",)),
    kinds.SlowSlice(1, 0, ("2.0",), 100),
    kinds.DiskBudget(2, 300_000, 200_000),
    kinds.DiskOverdrawn(2, 300_000, 200_000, 100_000, "aa11", "orders/region=eu"),
    kinds.Aligning(1, 12, ("2.0", "2.1")),
    kinds.OpenTransaction("aa11", ("orders/region=eu",), 0, 5, 500),
    kinds.AwaitedCommit(0, "aa11", "orders/region=eu", "orders/region=us", NOW - 9),
    kinds.TransactionLogWait(),
    kinds.WholePerPartition(),
    kinds.Acknowledging(12, "captured", (2, 3), (3,)),
    kinds.Consuming("spark", 10, 12),
    kinds.EpochsAhead(1, 257, 256),
    kinds.Idle(),
    kinds.ClockAhead(1, 0, "orders/000", "0100000000aa", 3.2e8, 2),
    kinds.ThreadEnded(4711, "penstock watch", "KeyError: 'x'"),
    kinds.StoreSilent(1, "kafka://broker:9092", "could not read orders-0: it is gone"),
]


def state(**changes: Any) -> FeedState:
    made = FeedState(
        feed="orders",
        store="file:///store",
        folder="/folder",
        process=1234,
        host="name",
        started=NOW - 100,
        written=NOW,
        phase="running",
        restarts=Restarts(1, (RestartEvent(NOW - 50, "member 2 was killed", 2, None),)),
        bindings=(BindingState(0, "orders", 0, 0, 0, 0.0),),
        members=(
            MemberState(
                1, 4321, "name", NOW, 128,
                (SliceState(0, 4, 1000, 10, 1, 5.0, (Flow(2, 2.5, 0.9),)),),
                QueueState(1000, 3, 65537, 5.0, DiskState(1, 2, False, 0)),
            ),
            MemberState(2, None, None, None, 128, (), QUEUE),
        ),
        journals=Journals(1, (JournalState("orders/a", 0, 1, 0, 10, 20, 10, None, 1.0),)),
        transactions=Transactions(
            1,
            (TransactionState("aa11", NOW - 9, 0, ("a",), ("b",), "a", 5, 500, holds_up=True),),
        ),
        epochs=(
            EpochState(
                12, "commit", NOW - 1, 0.01, 0.02, 0.03, True, 2, (), 1000, None, NOW - 3
            ),
        ),
        watermark=WatermarkState(NOW - 3, HeldBy("orders/a", 1)),
        consumer=ConsumerState("spark", 10, 12, NOW - 1),
        recovery=RecoveryState(10, 20, 3.0),
        vnodes=(1, 2) * 128,
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def waits(*causes: Cause, seconds: float = 30.0) -> tuple[Any, ...]:
    return Standing().look([Seen(cause, since=NOW - seconds) for cause in causes], NOW)


def test_every_kind_has_an_example_and_its_name() -> None:
    assert {cause.kind for cause in EXAMPLES} == set(KINDS)
    assert len(KINDS) == 24


@pytest.mark.parametrize("cause", EXAMPLES, ids=lambda cause: cause.kind)
def test_a_wait_says_what_it_is_and_comes_back_from_json(cause: Cause) -> None:
    seen = Seen(cause, 3, NOW - 12)
    assert Seen.from_json(json.loads(json.dumps(seen.to_json()))) == seen
    text = cause.text(12.0)
    assert text.endswith(".")
    assert text[0].isupper() or text[0].isdigit()
    assert "None" not in text
    assert cause.kind == "idle" or str(cause.advice).endswith((".", "?"))
    assert cause.kind == "idle" or cause.advice is not None


def test_a_wait_of_no_known_kind_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="'weather'"):
        cause_of("weather", {})
    with pytest.raises(RemoteProtocolError, match="'idle'"):
        cause_of("idle", {"member": 1})


def unsealed(state: FeedState) -> bytes:
    """As a release before seals wrote it."""
    fields = json.loads(encode_state(state))
    del fields["checksum"]
    return json.dumps(fields).encode()


def test_a_state_comes_back_from_json() -> None:
    whole = explained(state(waits=waits(*EXAMPLES)))
    back = decode_state(encode_state(whole))
    assert encode_state(back) == encode_state(whole)
    assert back.members == whole.members
    assert back.waits[0].kind == whole.waits[0].kind


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"{", "not readable JSON"),
        (b"[]", "not hold a JSON object"),
        (b'{"format": 2}', "format 2, and this release knows 1"),
        (b'{"format": 1}', "not what it says"),
        (encode_state(state()).replace(b'"running"', b'"dancing"'), "checksum does not match"),
        (unsealed(state()).replace(b'"running"', b'"dancing"'), "dancing"),
        (unsealed(state()).replace(b'"process": 1234', b'"process": "x"'), "'x' is not of type"),
    ],
)
def test_what_is_no_state_is_refused(text: bytes, says: str) -> None:
    with pytest.raises(StateFormatError, match=says):
        decode_state(text, "the file")


def test_a_wait_stands_as_long_as_nothing_moves() -> None:
    standing = Standing()
    cause = kinds.Credit(1, 0, 2, 0.0)
    assert standing.look([Seen(cause, 5)], NOW) == ()
    found = standing.look([Seen(cause, 5)], NOW + 1.5)
    assert [(one.kind, one.since, one.is_stall) for one in found] == [("credit", NOW, False)]
    assert standing.look([Seen(cause, 5)], NOW + 3)[0].is_stall
    assert standing.look([Seen(cause, 6)], NOW + 4) == (), "it went on meanwhile"
    assert standing.look([], NOW + 5) == ()
    assert standing.look([Seen(cause, 6)], NOW + 6) == (), "it was over in between"


def test_stalls_come_first_and_causes_before_effects() -> None:
    found = waits(*reversed(EXAMPLES))
    stalls = [wait.is_stall for wait in found]
    assert stalls == sorted(stalls, reverse=True)
    assert found[0].kind == "restart"
    assert found[-1].kind == "idle"
    many = [kinds.Probing(member, 0, "j", 1) for member in range(100)]
    assert len(waits(*many)) == WAITS_MAX


@pytest.mark.parametrize(
    ("changes", "verdict", "says"),
    [
        ({}, "healthy", "Feed orders is healthy: 5 rows a second go into the queues, 10 rows"),
        ({"waits": waits(kinds.Idle())}, "healthy", "healthy and idle"),
        ({"waits": waits(EXAMPLES[6])}, "healthy", "too young at member 1"),
        ({"waits": waits(EXAMPLES[13], seconds=7200)}, "healthy", "rows of others do not wait"),
        (
            {"waits": waits(EXAMPLES[13], EXAMPLES[11], seconds=7200)},
            "stuck",
            "open transactions hold the rest; the largest is that of producer aa11",
        ),
        ({"waits": waits(EXAMPLES[7], seconds=1.5)}, "waiting", "has sent nothing for 1.5 s"),
        ({"waits": waits(EXAMPLES[10])}, "stuck", "Queue 2 has written nothing for 30 s"),
        ({"waits": waits(EXAMPLES[1]), "phase": "restarting"}, "waiting", "is restarting"),
        ({"waits": waits(EXAMPLES[1], seconds=300), "phase": "restarting"}, "stuck", "5 min 0 s"),
        ({"phase": "failed", "reason": "given up"}, "down", "has failed at 2025-11-17 03:28:20"),
        ({"phase": "stopped"}, "down", "was stopped"),
        ({"members": (MemberState(1, None, None, None, 256, (), None),)}, "waiting", "is running"),
        ({"phase": "starting", "members": (), "epochs": ()}, "waiting", "is starting; there is no"),
    ],
)
def test_a_state_is_explained(changes: dict[str, Any], verdict: str, says: str) -> None:
    made = explained(state(**changes))
    assert made.verdict == verdict
    assert says in " ".join(made.explanation)
    if verdict in ("stuck", "down"):
        assert made.advice


def test_the_history_has_a_point_a_second_for_ten_minutes() -> None:
    history = History()
    for half in range(1400):
        history.add(NOW + half / 2, Point(float(half), half, None, None))
    kept = history.state()
    assert len(kept.seconds) == len(kept.rows_behind) == 600
    assert kept.seconds[-1] == NOW + 699
    assert kept.watermark_lag_seconds[0] is None


def test_a_folder_tells_whether_the_process_lives(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    folder.mkdir()
    with pytest.raises(StateMissingError, match=r"no state\.json"):
        load(folder)
    (folder / "state.json").write_bytes(encode_state(explained(state())))
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert load(folder).verdict == "healthy"
    long_ago = time.time() - SILENT_SECONDS - 5
    os.utime(folder / "state.json", (long_ago, long_ago))
    quiet = load(folder)
    assert (quiet.verdict, quiet.phase) == ("stuck", "running")
    assert "process 1234 on name lives, and has told nothing of itself" in quiet.explanation[0]
    os.close(lock)
    dead = load(folder)
    assert (dead.verdict, dead.phase, dead.waits) == ("down", "failed", ())
    assert "process 1234 on name is gone since about" in dead.explanation[0]
    assert find_folders(tmp_path) == find_folders(folder) == [folder]
    (folder / "state.json").write_bytes(encode_state(explained(state(phase="stopped"))))
    assert load(folder).phase == "stopped"
    assert issubclass(StateMissingError, PenstockError)


def test_batches_of_spark_are_read_beside_it(tmp_path: Path) -> None:
    assert load_spark(tmp_path) == ()
    batch = SparkBatch(5, NOW, 100, 12, {"addBatch": 50})
    (tmp_path / "spark.json").write_bytes(encode_batches([batch]))
    assert load_spark(tmp_path) == (batch,)
    (tmp_path / "spark.json").write_text('{"format": 1}')
    with pytest.raises(StateFormatError):
        load_spark(tmp_path)


def test_numbers_are_said_as_people_do() -> None:
    spans = [lasting(seconds) for seconds in (0.44, 9.99, 12, 200, 7500, 300_000)]
    assert spans == ["0.4 s", "10.0 s", "12 s", "3 min 20 s", "2 h 5 min", "3 days"]
    assert (counted(1, "row"), counted(1234, "row")) == ("1 row", "1,234 rows")
    assert (sized(10), sized(200_000)) == ("10 bytes", "195.3 KiB")
    assert listed([1], "member") == "member 1"
    assert listed([1, 2], "member") == "members 1 and 2"
    assert listed("abcdefg") == "a, b, c and 4 others"
