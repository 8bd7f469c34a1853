"""A feed's folder: whose it is, and what may change between two runs of a query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.errors import ConfigurationError
from penstock.spark.streaming.folders import feed_folder, settle_folder
from penstock.spark.streaming.options import StreamOptions

if TYPE_CHECKING:
    from pathlib import Path


def _options(**given: str) -> StreamOptions:
    return StreamOptions.parse({"store": "file:///data/journals", "collection": "orders", **given})


def test_the_number_of_members_may_change_and_what_is_read_may_not(tmp_path: Path) -> None:
    settle_folder(tmp_path, _options(members="2", priority="1"), is_new=True)
    settle_folder(tmp_path, _options(members="2", priority="1"), is_new=False)
    settle_folder(tmp_path, _options(members="3", priority="1"), is_new=False)
    with pytest.raises(ConfigurationError, match="began with other bindings"):
        settle_folder(tmp_path, _options(members="2", priority="2"), is_new=False)
    with pytest.raises(ConfigurationError, match="is not there"):
        settle_folder(tmp_path / "other", _options(), is_new=False)


def test_a_folder_is_in_the_stores_or_where_the_user_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(feed_folder(_options(), "f00d")) == "/data/journals/feeds/f00d"
    assert feed_folder(_options(folder=str(tmp_path)), "f00d") == tmp_path / "f00d"
    # Brokers have no folder: then it is one of the user's own, and nothing secret is in its name.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = feed_folder(_options(store="kafka://machine:9092,other:9092#c2VjcmV0"), "f00d")
    assert found == tmp_path / "penstock/kafka/machine_9092,other_9092/feeds/f00d"
