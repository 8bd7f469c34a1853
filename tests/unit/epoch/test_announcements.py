"""What leader and members write into their slots: it comes back as it was, or is refused."""

from __future__ import annotations

import dataclasses
import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.epoch.announcements import (
    REASON_CHARACTERS_MAX,
    Acknowledgement,
    Announcement,
    Phase,
    Stage,
    short,
)
from penstock.errors import RemoteProtocolError

numbers = st.integers(0, 2**64)
clocks = st.none() | st.integers(-(2**63), 2**63)
announcements = st.builds(
    Announcement,
    term=numbers,
    epoch=numbers,
    phase=st.sampled_from(Phase),
    members=st.lists(numbers, max_size=4).map(tuple),
    flags=numbers,
    seconds_max=st.floats(0, 1e6),
    watermark=clocks,
    reason=st.text(),
)
acknowledgements = st.builds(
    Acknowledgement,
    term=numbers,
    epoch=numbers,
    stage=st.sampled_from(Stage),
    watermark=clocks,
    error=st.text(),
    finished=numbers,
)
PREPARE = Announcement(2, 7, Phase.PREPARE, (1, 2), 4, 30.0)
PREPARED = Acknowledgement(2, 7, Stage.PREPARED, 90, "", 6)


@given(announcements)
def test_an_announcement_comes_back_as_it_was(announcement: Announcement) -> None:
    assert Announcement.from_json(announcement.to_json()) == announcement


@given(acknowledgements)
def test_an_acknowledgement_comes_back_as_it_was(acknowledgement: Acknowledgement) -> None:
    assert Acknowledgement.from_json(acknowledgement.to_json()) == acknowledgement


def test_the_fields_are_those_of_the_format() -> None:
    assert json.loads(PREPARE.to_json()) == {
        "term": 2, "epoch": 7, "phase": "prepare", "members": [1, 2], "flags": 4,
        "seconds_max": 30.0, "watermark": None, "reason": "",
    }  # fmt: skip
    assert json.loads(PREPARED.to_json()) == {
        "term": 2, "epoch": 7, "stage": "prepared", "watermark": 90, "error": "", "finished": 6,
    }  # fmt: skip


MEANT = {"term", "epoch", "phase", "members", "stage"}
"""Without these nothing is said."""


@pytest.mark.parametrize("field", sorted(MEANT - {"stage"}))
def test_an_announcement_of_no_epoch_is_refused(field: str) -> None:
    fields = json.loads(PREPARE.to_json())
    del fields[field]
    with pytest.raises(RemoteProtocolError, match=f"not an announcement: .*{field}"):
        Announcement.from_json(json.dumps(fields))


@pytest.mark.parametrize("field", sorted(MEANT - {"phase", "members"}))
def test_an_acknowledgement_of_no_epoch_is_refused(field: str) -> None:
    fields = json.loads(PREPARED.to_json())
    del fields[field]
    with pytest.raises(RemoteProtocolError, match=f"not an acknowledgement: .*{field}"):
        Acknowledgement.from_json(json.dumps(fields))


@given(announcements | acknowledgements, st.data())
def test_whatever_else_an_older_version_does_not_write_has_its_default(
    said: Announcement | Acknowledgement, data: st.DataObject
) -> None:
    """Any set of fields may be missing. Every field has a default, or is one of the few: so a
    field that is added later without one fails here."""
    fields = json.loads(said.to_json())
    missing = data.draw(st.sets(st.sampled_from(sorted(set(fields) - MEANT))))
    without = {name: value for name, value in fields.items() if name not in missing}
    defaults: dict[str, Any] = {each.name: each.default for each in dataclasses.fields(said)}
    expected = replace(said, **{name: defaults[name] for name in missing})
    assert type(said).from_json(json.dumps(without)) == expected


@pytest.mark.parametrize("kind", [Announcement, Acknowledgement])
def test_what_is_nested_too_deeply_is_refused(kind: Any) -> None:
    """A slot holds a mebibyte, and a parser's stack less."""
    with pytest.raises(RemoteProtocolError, match="nested too deeply"):
        kind.from_json("[" * 500_000)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("term", -1), ("term", "2"), ("term", True), ("term", 2.0), ("term", None),
        ("epoch", -7), ("epoch", [7]), ("phase", "begin"), ("phase", None), ("members", 1),
        ("members", [1, "2"]), ("members", None), ("flags", "4"), ("seconds_max", "soon"),
        ("seconds_max", None), ("watermark", "90"), ("watermark", 9.5), ("watermark", True),
    ],
)  # fmt: skip
def test_an_announcement_of_other_kinds_is_refused(field: str, value: object) -> None:
    fields = json.loads(PREPARE.to_json()) | {field: value}
    with pytest.raises(RemoteProtocolError, match="not an announcement"):
        Announcement.from_json(json.dumps(fields))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("term", -1), ("term", "2"), ("epoch", None), ("epoch", False), ("stage", "ready"),
        ("stage", 1), ("watermark", "90"), ("finished", -1), ("finished", "6"),
    ],
)  # fmt: skip
def test_an_acknowledgement_of_other_kinds_is_refused(field: str, value: object) -> None:
    fields = json.loads(PREPARED.to_json()) | {field: value}
    with pytest.raises(RemoteProtocolError, match="not an acknowledgement"):
        Acknowledgement.from_json(json.dumps(fields))


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", '"prepare"', "{}", "nonsense"])
@pytest.mark.parametrize("kind", [Announcement, Acknowledgement])
def test_what_is_no_object_is_refused_and_shown(kind: Any, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="not an a") as told:
        kind.from_json(text)
    assert repr(text) in str(told.value)


def test_a_field_of_a_later_version_does_no_harm() -> None:
    fields = json.loads(PREPARE.to_json()) | {"later": 1}
    assert Announcement.from_json(json.dumps(fields)) == PREPARE
    fields = json.loads(PREPARED.to_json()) | {"later": 1}
    assert Acknowledgement.from_json(json.dumps(fields)) == PREPARED


def test_a_newer_leader_counts_more_than_a_later_epoch_and_that_more_than_a_phase() -> None:
    """What a leader says, in the order in which it says it; each leader after the one before."""
    said = [
        replace(PREPARE, term=term, epoch=epoch, phase=phase)
        for term, epochs in ((1, (4, 5, 9)), (2, (5, 6)), (3, (6,)))
        for epoch in epochs
        for phase in (Phase.PREPARE, Phase.ALIGNED, Phase.COMMIT)
    ]
    for earlier, later in itertools.pairwise(said):
        assert earlier.order < later.order
    assert PREPARE.order == replace(PREPARE, flags=0, watermark=1, reason="other").order
    assert replace(PREPARE, phase=Phase.COMMIT).order < replace(PREPARE, phase=Phase.ABORT).order


@given(st.integers(0, 3 * REASON_CHARACTERS_MAX), st.text(min_size=1))
def test_a_reason_fits_a_slot(length: int, part: str) -> None:
    text = (part * length)[:length]
    shortened = short(text)
    assert len(shortened) <= REASON_CHARACTERS_MAX
    assert shortened == text or text.startswith(shortened.removesuffix("..."))
    assert len(shortened) == min(len(text), REASON_CHARACTERS_MAX)
    assert short(ValueError(text)) == shortened
