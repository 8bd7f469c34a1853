"""A real store, and the command line run in this process against it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import pytest
from click.testing import CliRunner, Result

from penstock.cli.app import app
from penstock.journal import Collection, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.journal import OpenStore

Run: TypeAlias = Callable[..., Result]

ORDERS = Collection.define(
    "orders",
    "id BIGINT NOT NULL, region STRING, amount DECIMAL(10,2), at TIMESTAMP",
    key="id",
    partition_by="region",
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OpenStore]:
    with open_store(tmp_path / "store", durability="buffered") as opened:
        opened.create(ORDERS)
        yield opened


@pytest.fixture
def run(store: OpenStore) -> Run:
    """`run("read", "orders")`; expects exit code 0 unless told otherwise with `code=`."""

    def run_command(*arguments: str, code: int = 0) -> Result:
        # Its errors would be raised here instead of being shown, were they not caught.
        result = CliRunner().invoke(app, arguments, env={"PENSTOCK_STORE": store.url})
        assert result.exit_code == code, result.output
        return result

    return run_command
