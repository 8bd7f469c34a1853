"""Log records say whose they are."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from penstock.logs import about, fields_of, written_to

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

LOGGER = logging.getLogger("penstock.shuffle")


def test_records_carry_what_is_known(caplog: pytest.LogCaptureFixture) -> None:
    log = about(LOGGER, feed="orders", member=2)
    log.warning("no room")
    log.warning("epoch %d was aborted", 5, extra={"epoch": 5, "member": None})
    LOGGER.warning("nobody's")
    assert [fields_of(record) for record in caplog.records] == [
        {"feed": "orders", "member": 2},
        {"feed": "orders", "epoch": 5},
        {},
    ]


def test_a_file_has_a_line_of_json_for_each(tmp_path: Path) -> None:
    path = tmp_path / "log"
    parent = logging.getLogger("penstock")
    before = parent.level, list(parent.handlers)
    with written_to(path):
        about(LOGGER, feed="orders").info("it %s", "began")
        LOGGER.debug("too much")
        try:
            raise ValueError("bad")
        except ValueError:
            about(LOGGER, member=1).exception("it failed")
    assert (parent.level, parent.handlers) == before
    LOGGER.error("after it")
    began, failed = map(json.loads, path.read_text().splitlines())
    assert began.pop("at").endswith("+00:00")
    assert began == {
        "level": "info",
        "logger": "penstock.shuffle",
        "feed": "orders",
        "text": "it began",
    }
    assert (failed["member"], failed["level"]) == (1, "error")
    assert "ValueError: bad" in failed["error"]
    with written_to(None):
        pass
