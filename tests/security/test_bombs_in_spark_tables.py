"""Small files that claim to be large, read as tables on Spark: tasks reject them within the same limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forged_savepoints import ENTRIES, savepoint_of_shops
from test_bombs_in_stored_state import BOMBS, ELEMENTS, EVERY, KEYED

pytestmark = [pytest.mark.spark, pytest.mark.extended]

# Far below the sizes that the files claim. The limit includes the libraries that Python maps.
_ADDRESS_SPACE_MB = 4096
_TIMEOUT_S = 1800

_CHILD = """
import json, sys
from pyspark.sql import SparkSession
from statebackend.spark.state_tables import register_state_tables

megabytes, paths = int(sys.argv[1]), json.loads(sys.argv[2])
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "1")
    # The processes that plan a table, and those that read it.
    .config("spark.sql.planner.pythonExecution.memory", f"{megabytes}m")
    .config("spark.executor.pyspark.memory", f"{megabytes}m")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
register_state_tables(spark)
ends = {}
for path in paths:
    for kind, state in (("keyed", "sales"), ("operator", "seen"), ("metadata", None)):
        table = spark.read.format("statebackend").option("kind", kind).option("operator", "shops")
        table = table if state is None else table.option("state", state)
        try:
            ends[f"{path} {kind}"] = ["rows", table.load(path).count()]
        except Exception as error:
            ends[f"{path} {kind}"] = ["error", str(error)]
spark.stop()
print(json.dumps(ends))
"""


def test_tables_reject_every_bomb_and_read_valid_files(tmp_path: Path) -> None:
    good = savepoint_of_shops(tmp_path / "good")
    for forge, _ in BOMBS:
        forge(savepoint_of_shops(tmp_path / forge.__name__))
    ends = _read_as_tables([good, *(tmp_path / forge.__name__ for forge, _ in BOMBS)])

    assert ends[f"{good} keyed"] == ["rows", len(ENTRIES)]
    assert ends[f"{good} operator"] == ["rows", 1000]
    assert ends[f"{good} metadata"] == ["rows", 2]
    for forge, rejecting in BOMBS:
        path = tmp_path / forge.__name__
        for kind, readers in (("keyed", KEYED), ("operator", ELEMENTS), ("metadata", EVERY)):
            end, answer = ends[f"{path} {kind}"]
            if set(readers) <= set(rejecting):
                assert end == "error", f"{path.name} is read as {kind}: {answer} rows"
            if end == "error":
                assert "MemoryError" not in answer, path.name
                assert "statebackend" in answer, answer


def _read_as_tables(paths: list[Path]) -> dict[str, list[Any]]:
    ended = subprocess.run(
        [sys.executable, "-c", _CHILD, str(_ADDRESS_SPACE_MB), json.dumps([str(path) for path in paths])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    answer: dict[str, list[Any]] = json.loads(ended.stdout.splitlines()[-1])
    return answer
