"""Where a member's queue is, which member a task is to be, and whether there is room for it."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from penstock.shuffle.queue.log import QueueLog
from penstock.spark.cluster.places import (
    Held,
    cast_members,
    feed_folders,
    held_queues,
    local_directories,
    queue_folder,
)
from penstock.spark.cluster.slots import SlotsMissingError, is_local


def test_directories_are_those_that_spark_uses_in_its_order() -> None:
    everything = {
        "CONTAINER_ID": "container_1",
        "LOCAL_DIRS": "/yarn/1,/yarn/2",
        "SPARK_EXECUTOR_DIRS": "/executor/1:/executor/2",
        "SPARK_LOCAL_DIRS": "/local/1,/local/2",
    }
    assert local_directories(everything, "/conf") == ["/yarn/1", "/yarn/2"]
    del everything["CONTAINER_ID"]  # LOCAL_DIRS alone is nobody's
    assert local_directories(everything, "/conf") == ["/executor/1", "/executor/2"]
    del everything["SPARK_EXECUTOR_DIRS"]
    assert local_directories(everything, "/conf") == ["/local/1", "/local/2"]
    assert local_directories({}, "/conf/1, /conf/2") == ["/conf/1", "/conf/2"]
    assert local_directories({}, "") == [tempfile.gettempdir()]


def test_queues_are_found_where_they_were_put(tmp_path: Path) -> None:
    folders = feed_folders("feed", [str(tmp_path / "a"), str(tmp_path / "b")])
    assert held_queues(folders) == {}
    made = {}
    for folder, member in ((folders[0], 1), (folders[1], 12)):
        path = Path(queue_folder(folder, member))
        with QueueLog.open(path, 0) as log:
            made[member] = Held(str(path), log.generation)
    (tmp_path / "a" / "penstock" / "feed" / "member-2").mkdir()  # its queue is lost
    (tmp_path / "a" / "penstock" / "feed" / "member-3").mkdir()
    (tmp_path / "a" / "penstock" / "feed" / "member-3" / "floor").write_bytes(b"damaged")
    (tmp_path / "a" / "penstock" / "feed" / "lock").touch()
    assert held_queues(folders) == made
    assert held_queues(feed_folders("other", [str(tmp_path / "a")])) == {}


@given(st.data(), st.integers(1, 8))
def test_every_task_is_another_member(data: st.DataObject, count: int) -> None:
    members = range(1, count + 1)
    held = data.draw(st.lists(st.sets(st.integers(1, 10)), min_size=count, max_size=count))
    cast = cast_members(members, held)
    assert sorted(cast) == list(members)
    # Of two tasks without their queues, neither would have one in the other's place.
    for one in range(count):
        for other in range(count):
            if cast[one] not in held[one] and cast[other] not in held[other]:
                assert cast[other] not in held[one]


def test_tasks_go_on_where_their_queues_are() -> None:
    assert cast_members([1, 2, 3], [{3}, {1, 2, 3}, {2, 3}]) == [3, 1, 2]
    assert cast_members([1, 2], [{1, 2}, {1, 2}]) == [1, 2]
    assert cast_members([1, 2], [{2}, set()]) == [2, 1]
    assert cast_members([1, 2], [{9}, {1}]) == [2, 1], "a member that is no more"


def test_missing_slots_are_counted_and_told() -> None:
    error = pickle.loads(pickle.dumps(SlotsMissingError(4, 2, 5, "local[5]")))
    assert error.missing == 2
    assert "2 missing" in str(error)
    assert "local[7]" in str(error)
    assert "2 are taken" in str(error)
    far = SlotsMissingError(4, 0, 4, "spark://machine:7077")
    assert far.missing == 1
    assert "executors" in str(far)
    assert [is_local(one) for one in ("local", "local[4]", "local-cluster[2,2,1024]", "yarn")] == [
        True,
        True,
        False,
        False,
    ]
