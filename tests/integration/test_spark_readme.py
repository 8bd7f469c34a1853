"""The README's code fits together and runs, word for word but for the folders.

It runs in a process of its own: `ps.cluster` with four members wants more slots than the Spark that
other tests share.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[2] / "README.md"
WAIT_SECONDS_MAX = 600

BEFORE = """
import json, sys, time
from penstock.spark import local_session
said = {}
spark = local_session("readme", 8, **{
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": 2,
})

def rows(collection, *columns):
    reader = spark.read.format("penstock").option("store", "file:///data/journals")
    found = reader.option("collection", collection).load().select(*columns).collect()
    return sorted([str(value) for value in row] for row in found)
"""
AFTER_STREAM = """
deadline = time.monotonic() + 300
while query.isActive and not (found := rows("large", "id", "amount")):
    assert time.monotonic() < deadline
    time.sleep(0.2)
query.stop()
said["large"] = found
"""
AFTER_CLUSTER = """
said["columns"] = orders.columns
"""
AFTER_ALL = """
from pathlib import Path
from penstock.spark.pipeline import Pipeline, load_pipeline
name, function = load_pipeline(Path(sys.argv[1]))
made = Pipeline(spark, store, Path("/data/checkpoints"), trigger={"availableNow": True})
function(made)
for query in made.queries:
    query.awaitTermination()
said["totals"] = rows("totals", "customer", "total")
print(json.dumps(said))
"""


def _blocks() -> list[str]:
    """Without what needs a Kafka: `tests/kafka` runs that."""
    text = README.read_text(encoding="utf-8").partition("## Without Spark")[0]
    found = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return [block for block in found if "kafka" not in block]


@pytest.mark.slow
def test_the_code_of_the_readme_runs(tmp_path: Path) -> None:
    read, write, stream, cluster, program, batch = (
        block.replace("/data/", f"{tmp_path}/") for block in _blocks()
    )
    (tmp_path / "totals.py").write_text(program)
    glue = [BEFORE, AFTER_STREAM, AFTER_CLUSTER, AFTER_ALL]
    before, after_stream, after_cluster, after_all = (
        part.replace("/data/", f"{tmp_path}/") for part in glue
    )
    parts = [before, write, read, stream, after_stream, cluster, after_cluster, batch, after_all]
    (tmp_path / "readme.py").write_text("\n".join(parts))
    done = subprocess.run(
        [sys.executable, tmp_path / "readme.py", tmp_path / "totals.py"],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    *shown, last = done.stdout.splitlines()
    said: dict[str, Any] = json.loads(last)
    assert said["large"] == [["2", "120.00"]]
    assert said["totals"] == [["ada", "9.50"], ["bob", "120.00"]]
    assert said["columns"] == ["id", "customer", "region", "amount", "_meta"]
    table = [line.strip("|").split("|") for line in shown if line.startswith("|")]
    assert {region.strip(): amount.strip() for region, amount in table[1:]} == {
        "eu": "9.50",
        "us": "120.00",
    }
