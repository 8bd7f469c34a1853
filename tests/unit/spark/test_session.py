"""Where a driver says that it is."""

from __future__ import annotations

import pytest

from penstock.spark.session import is_here


@pytest.mark.parametrize("master", ["local", "local[2]", "local-cluster[2,1,1024]"])
def test_local_masters_are_here(master: str) -> None:
    assert is_here(master)


def test_a_master_on_loopback_is_here() -> None:
    assert is_here("spark://127.0.0.1:7077")
    assert is_here("spark://localhost:7077")


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://10.0.0.1:6443"])
def test_others_are_not(master: str) -> None:
    assert not is_here(master)
