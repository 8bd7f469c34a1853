"""Where a driver says that it is, and what of Spark's words is repeated."""

from __future__ import annotations

import pytest

from penstock.spark.session import is_here, is_noise


@pytest.mark.parametrize("master", ["local", "local[2]", "local-cluster[2,1,1024]"])
def test_local_masters_are_here(master: str) -> None:
    assert is_here(master)


def test_a_master_on_loopback_is_here() -> None:
    assert is_here("spark://127.0.0.1:7077")
    assert is_here("spark://localhost:7077")


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://10.0.0.1:6443"])
def test_others_are_not(master: str) -> None:
    assert not is_here(master)


BLOCK = [
    b"Traceback (most recent call last):\n",
    b'  File "site-packages/pyspark/daemon.py", line 95, in worker\n',
]


def test_a_process_that_finds_java_gone_is_noise() -> None:
    assert is_noise(b"BrokenPipeError: [Errno 32] Broken pipe\n", BLOCK)
    assert is_noise(b"WARNING: Using incubator modules: jdk.incubator.vector\n", [])
    assert is_noise(b"WARNING: package sun.security.action not in java.base\n", [])


def test_other_errors_are_not() -> None:
    assert not is_noise(b"MemoryError\n", BLOCK)
    assert not is_noise(b"BrokenPipeError: [Errno 32] Broken pipe\n", BLOCK[:1])
    assert not is_noise(b"spark ERROR Executor: no space left\n", [])
