"""Processes of the shuffle start without pandas, which takes longer to import than all the rest,
and with the memory pool that holds about what is in use."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest

ASKED = "import sys; print('pandas' in sys.modules)"


def answer(program: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=True,
        env={**os.environ, **variables},
    )
    return done.stdout.decode().strip()


@pytest.mark.parametrize("module", ["penstock.shuffle.process_member", "penstock.spark.source"])
def test_importing_does_not_import_pandas(module: str) -> None:
    assert answer(f"import {module}; {ASKED}") == "False"


def test_columns_are_made_without_pandas() -> None:
    left_out = "from penstock.shuffle.own_process import leave_out_pandas; leave_out_pandas()"
    made = "import pyarrow as pa; pa.array([1]).to_numpy()"
    assert answer(f"{left_out}; {made}; {ASKED}") == "False"
    assert answer(f"{made}; {ASKED}") == "True", "else this proves nothing"
    assert answer(f"{left_out}; import pandas; {ASKED}") == "True", "it can still be had"


POOL = "import pyarrow as pa; print(pa.default_memory_pool().backend_name)"
SOURCE_PROCESS = (
    "import sys; from importlib.machinery import ModuleSpec; "
    "name = 'pyspark.sql.streaming.python_streaming_source_runner'; "
    "sys.modules['__main__'].__spec__ = ModuleSpec(name, None); "
    "from penstock.spark.streaming.process import settle_process; settle_process()"
)
SETTLED = "from penstock.shuffle.own_process import settle_own_process; settle_own_process()"


@pytest.mark.skipif("jemalloc" not in pa.supported_memory_backends(), reason="pyarrow has it not")
@pytest.mark.parametrize("settled", [SETTLED, SOURCE_PROCESS], ids=["member", "source"])
def test_processes_of_the_shuffle_choose_their_memory_pool(settled: str) -> None:
    """Members, and the process of a streaming source, in which members are threads."""
    assert answer(f"{settled}; {POOL}") == "jemalloc"
    assert answer(f"{settled}; {POOL}", ARROW_DEFAULT_MEMORY_POOL="system") == "system"


@pytest.mark.skipif("jemalloc" not in pa.supported_memory_backends(), reason="pyarrow has it not")
def test_a_process_in_which_users_functions_may_run_keeps_its_memory_pool() -> None:
    imported = "from penstock.spark.streaming.process import settle_process; settle_process()"
    assert answer(f"{imported}; {POOL}") == answer(POOL) != "jemalloc"
