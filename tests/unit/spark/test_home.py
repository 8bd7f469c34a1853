"""Spark's home without the archive that every Python process would compile anew."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.spark.home import use_spark_home

if TYPE_CHECKING:
    import pytest


def test_the_home_has_all_but_the_archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    for _ in range(2):  # the second finds it made
        monkeypatch.delenv("SPARK_HOME", raising=False)
        use_spark_home()
        home = Path(os.environ["SPARK_HOME"])
        assert home.parent == tmp_path
        assert (home / "bin" / "spark-submit").is_file()
        assert list((home / "jars").glob("spark-core_*.jar"))
        assert not (home / "python").exists()


def test_links_to_a_spark_that_was_elsewhere_are_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / "penstock-spark").mkdir()
    (tmp_path / "penstock-spark" / "bin").symlink_to(tmp_path / "gone")
    use_spark_home()
    assert (tmp_path / "penstock-spark" / "bin" / "spark-submit").is_file()


def test_another_spark_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    use_spark_home()
    assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written_spark_is_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARK_HOME", "")
    monkeypatch.delenv("SPARK_HOME")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "missing"))
    use_spark_home()
    assert "SPARK_HOME" not in os.environ
