"""Frames hold what their bytes can hold, and nothing else."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.errors import LocalProtocolError
from penstock.transport.frames import (
    ALIVE,
    BATCH_BYTES_MAX,
    BODY_BYTES_MAX,
    STAGE_BYTES_MAX,
    TOKEN_BYTES_MAX,
    Barrier,
    Close,
    Credit,
    Flush,
    Flushed,
    Frame,
    Hello,
    Origin,
    VnodeData,
)

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = pa.record_batch([pa.array([1, 2])], ["n"])
U16, U63, U64 = 2**16 - 1, 2**63 - 1, 2**64 - 1

FIELDS: list[tuple[str, int, Callable[[int], Frame]]] = [
    ("member", U64, lambda value: Hello(value, 0, b"")),
    ("lane", U16, lambda value: Hello(0, value, b"")),
    ("window", U63, lambda value: Hello(0, 0, b"", value)),
    ("generation", U63, lambda value: Hello(0, 0, b"", generation=value)),
    ("version", U16, lambda value: Hello(0, 0, b"", 0, value)),
    ("vnode", U16, lambda value: VnodeData("s", value, BATCH)),
    ("checkpoint", U64, lambda value: Barrier(value, 0)),
    ("epoch", U64, lambda value: Barrier(0, value)),
    ("flags", U64, lambda value: Barrier(0, 0, value)),
    ("cycle", U64, Flush),
    ("cycle", U64, lambda value: Flushed(value, 0)),
    ("lsn", U64, lambda value: Flushed(0, value)),
    ("credit", U64, lambda value: Credit(value, 0)),
    ("credit", U64, lambda value: Credit(0, value)),
]


@pytest.mark.parametrize(("name", "maximum", "make"), FIELDS)
def test_a_number_fits_its_field(name: str, maximum: int, make: Callable[[int], Frame]) -> None:
    assert make(0) == make(0)
    assert make(maximum) != make(0)
    for value in (-1, maximum + 1):
        with pytest.raises(LocalProtocolError, match=f"{name} {value} is outside of 0 to"):
            make(value)


def test_a_token_has_a_limit_and_is_not_shown() -> None:
    longest = b"secret!!" * (TOKEN_BYTES_MAX // 8)
    assert "secret" not in repr(Hello(1, 0, longest))
    assert Hello(1, 0, longest) != Hello(1, 0, b"")
    with pytest.raises(LocalProtocolError, match="token"):
        Hello(1, 0, longest + b"!")


def test_frames_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Flush(1).cycle = 2  # type: ignore[misc]


def test_frames_go_between_processes() -> None:
    frames = [Hello(1, 2, b"t", 3, 4), Barrier(1, 2, 3), Flush(4), Flushed(5, 6), Credit(7, 8)]
    for frame in [*frames, Close("why", fault=True), VnodeData("s", 1, BATCH)]:
        assert pickle.loads(pickle.dumps(frame)) == frame


def test_an_origin_is_named_for_people() -> None:
    assert str(Origin(3)) == "member 3 lane 0"
    assert str(Origin(3, 2)) == "member 3 lane 2"


def test_a_heartbeat_grants_nothing() -> None:
    assert Credit(0, 0) == ALIVE


def test_a_batch_and_its_schema_fit_a_body() -> None:
    assert BODY_BYTES_MAX >= BATCH_BYTES_MAX + 2 * STAGE_BYTES_MAX
    assert BODY_BYTES_MAX < 2**32, "the length has four bytes"
