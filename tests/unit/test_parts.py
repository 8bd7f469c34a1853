"""What the documentation shows does run, word for word; only its folders are other ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    import pytest

PARTS = Path(__file__).parents[2] / "docs" / "parts.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PARTS.read_text(), re.DOTALL)


def block_with(text: str) -> str:
    (found,) = [block for block in BLOCKS if text in block]
    return str(found)


def run(code: str, tmp_path: Path, **names: Any) -> None:
    exec(compile(code.replace("file:///data", f"file://{tmp_path}"), PARTS.name, "exec"), names)


def test_frames_between_members(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    batch = pa.record_batch({"customer": pa.array(range(100)), "amount": pa.array(range(100))})
    code = block_with("split_by_target").replace("timeout_seconds=1", "timeout_seconds=0.5")
    run(code, tmp_path, batch=batch)
    lines = capsys.readouterr().out.splitlines()
    assert "member 1 lane 0 Barrier(checkpoint=1" in lines[-1]
    assert len(lines) > 10, "a line for each vnode"


def test_one_epoch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(block_with("EpochMember"), tmp_path)
    printed = capsys.readouterr().out
    assert "Verdict.COMMIT" in printed
    assert "watermark=1700" in printed
