"""What stands before the frames of a segment: whose they are, and where producers stand there.

A producer that will never write again is *departed*: its state is in the header of one segment,
the first that begins after that was known, and in none behind it. Nobody needs it to sequence rows;
a frontier needs it as long as the producer's rows are kept, which lie before that segment.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.checksum import checksum
from penstock.ids import Producer
from penstock.journal.errors import AppendFailedError
from penstock.sequence import ProducerState, StateColumns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SEGMENT_MAGIC: Final = b"PENSTOCK"
SEGMENT_VERSION: Final = 2
PREFIX: Final = struct.Struct("<8sIIQ")
"""Magic, version, length and checksum of the rest."""
_TEXT: Final = struct.Struct("<II")
"""The length of the text that follows, and zero."""
_STATE_COLUMNS: Final = (
    ("producers", "<i8"),
    ("last_commits", "<u8"),
    ("max_continues", "<u8"),
    ("offsets", "<i8"),
)
STATES_MAX: Final = 4 * 1024 * 1024
"""Producers in a header that may write again. They take 128 MiB."""
HEADER_BYTES_MAX: Final = 2 * 32 * STATES_MAX
"""As many may depart at once, those of the header before and of a whole segment: so a journal that
had to refuse an append can go on later."""


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What a segment says of itself. `fault` is set when an earlier row broke the protocol."""

    journal: str
    first_offset: int
    collection: dict[str, Any]
    states: Mapping[int, ProducerState] = field(default_factory=dict)
    """Of the producers that may still write, and those whose last rows are young."""
    fault: str | None = None
    departed: Mapping[int, ProducerState] = field(default_factory=dict)
    """Of those that will never write again, and are in no later header: where they ended."""
    departed_before: int | None = None
    """The latest earlier segment with departed producers."""
    bytes_before: int | None = None
    """What all segments before this one took, dropped ones too; None: nobody counted."""
    identity: str = ""
    """Of the journal; empty in segments from before there was one."""

    def encode(self) -> bytes:
        """Raises AppendFailedError if there are too many states."""
        states, departed = self.columns, _columns_of(self.departed)
        text = json.dumps(
            {
                "journal": self.journal,
                "identity": self.identity,
                "first_offset": self.first_offset,
                "collection": self.collection,
                "states": len(states),
                "departed": len(departed),
                "departed_before": self.departed_before,
                "bytes_before": self.bytes_before,
                "fault": self.fault,
            }
        ).encode()
        text += b" " * (-len(text) % 8)
        parts = [_TEXT.pack(len(text), 0), text, *_encode_states(states), *_encode_states(departed)]
        body = b"".join(parts)
        if len(states) > STATES_MAX or len(body) > HEADER_BYTES_MAX:
            raise AppendFailedError(
                f"{self.journal}: cannot begin another segment: {len(states):,} producers may "
                f"still write to it, and its header has room for the states of {STATES_MAX:,}. "
                "Nothing of this append was kept. Write with fewer producers, each for longer, and "
                "close those that are not used: a closed producer is let go a day after its last "
                "commit"
            )
        return PREFIX.pack(SEGMENT_MAGIC, SEGMENT_VERSION, len(body), checksum(body)) + body

    @property
    def columns(self) -> StateColumns:
        return _columns_of(self.states)

    @classmethod
    def decode(cls, version: int, body: bytes) -> SegmentHeader:
        """Of a checked body. Version 1 was all text."""
        if version == 1:
            data = json.loads(body)
            states = {
                Producer.from_hex(producer).int64: ProducerState(*state)
                for producer, *state in data["states"]
            }
            return cls(
                data["journal"],
                data["first_offset"],
                data["collection"],
                states,
                data["fault"],
                identity=data.get("identity", ""),
            )
        text_bytes, _ = _TEXT.unpack_from(body)
        position = _TEXT.size + text_bytes
        data = json.loads(body[_TEXT.size : position])
        columns = [_decode_states(body, position, data["states"])]
        position += 32 * data["states"]
        columns.append(_decode_states(body, position, data["departed"]))
        return cls(
            data["journal"],
            data["first_offset"],
            data["collection"],
            columns[0],
            data["fault"],
            columns[1],
            data["departed_before"],
            data["bytes_before"],
            data.get("identity", ""),
        )


def _columns_of(states: Mapping[int, ProducerState]) -> StateColumns:
    return states if isinstance(states, StateColumns) else StateColumns.of(states.items())


def _encode_states(states: StateColumns) -> Iterator[bytes]:
    for name, dtype in _STATE_COLUMNS:
        yield getattr(states, name).astype(dtype).tobytes()


def _decode_states(body: bytes, position: int, count: int) -> StateColumns:
    columns = []
    for _, dtype in _STATE_COLUMNS:
        columns.append(np.frombuffer(body, dtype, count, position))
        position += 8 * count
    return StateColumns(*columns)
