"""What a member says is plain data where the Session is, whatever the member became."""

from __future__ import annotations

import json
import logging
import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import RemoteProtocolError
from penstock.shuffle.crew import Crew
from penstock.shuffle.member_messages import (
    MESSAGE_BYTES_MAX,
    Failed,
    Logged,
    Over,
    Serving,
    Step,
    decode_message,
    encode_message,
)
from penstock.shuffle.queue.errors import QueueLostError

if TYPE_CHECKING:
    from penstock.shuffle.member_messages import MemberMessage

SOURCE = Path(penstock.__file__).parent
MESSAGES: list[MemberMessage] = [
    *Step,
    Serving("grpc+tls://10.0.0.7:4100"),
    Failed("OSError: the disk is gone"),
    Failed("ValueFormatError: it does not parse", is_final=True),
    Logged("penstock.shuffle", logging.WARNING, "slow", {"feed": "orders", "member": 3}),
    Over(),
]


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_what_is_said_is_understood(message: MemberMessage) -> None:
    assert decode_message(encode_message(message)) == message


def test_a_lost_queue_is_told_as_one() -> None:
    lost = QueueLostError("/queues/member-1", 7, "a block is missing")
    found = decode_message(encode_message(Failed.of(lost)))
    assert isinstance(found, Failed)
    assert isinstance(found.queue_lost, QueueLostError)
    assert str(found.queue_lost) == str(lost)


def test_no_message_is_longer_than_what_is_read() -> None:
    for message in (Failed("x" * 10**7), Logged("penstock", 40, "\x00" * 10**7)):
        assert len(encode_message(message)) <= MESSAGE_BYTES_MAX


class Harmful:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return pytest.fail, ("it was unpickled",)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
FIELDS = ["step", "location", "error", "folder", "segment", "reason", "logger", "level", "message"]


@given(
    st.binary(max_size=50)
    | st.builds(
        lambda says, fields: json.dumps({"says": says, **fields}).encode(),
        st.sampled_from(["step", "serving", "failed", "logged", "over"]) | JSON,
        st.dictionaries(st.sampled_from([*FIELDS, "known"]), JSON),
    )
)
def test_anything_else_is_refused(data: bytes) -> None:
    try:
        decode_message(data)
    except RemoteProtocolError as error:
        assert "run the same release" in str(error)  # noqa: PT017


@pytest.mark.parametrize("data", [pickle.dumps(Harmful()), pickle.dumps(Step.MADE), b"[" * 10**6])
def test_nothing_is_unpickled(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_message(data)


def test_only_the_driver_s_own_pickles_are_loaded() -> None:
    """By a task, what the driver gives it; by the driver, an error that it has just pickled."""
    found = {
        str(path.relative_to(SOURCE)): len(re.findall(r"pickle\.loads?\b", path.read_text()))
        for path in SOURCE.rglob("*.py")
        if re.search(r"pickle\.loads?\b", path.read_text())
    }
    assert found == {"spark/cluster/joining.py": 1, "spark/cluster/server.py": 1}


def test_a_member_makes_no_loggers(caplog: pytest.LogCaptureFixture) -> None:
    crew = Crew([1])
    for name in ("penstock.made.up", "root", "", "x" * 1000):
        crew._take(1, Logged(name, logging.ERROR, "told", {"member": 1}))
        assert name not in logging.Logger.manager.loggerDict
    assert [record.name for record in caplog.records] == ["penstock"] * 4
    assert all(record.getMessage() == "member 1: told" for record in caplog.records)


def test_a_member_overwrites_no_field_of_a_record() -> None:
    data = encode_message(Logged("penstock", 40, "told", {"message": "x", "args": 1, "epoch": 5}))
    found = decode_message(data)
    assert isinstance(found, Logged)
    assert found.known == {"epoch": 5}
