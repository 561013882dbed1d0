"""The example of docs/writing-a-sink.md runs, and its commit is idempotent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from statebackend.connectors import SinkEpoch, SinkLineage

PAGE = Path(__file__).resolve().parents[2] / "docs" / "writing-a-sink.md"


NAMES: dict[str, Any] = {"__name__": __name__}
for example in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
    exec(example, NAMES)

FilePerEpoch = NAMES["FilePerEpoch"]
TestFilePerEpoch = NAMES["TestFilePerEpoch"]


def test_the_example_commits_an_epoch_once(tmp_path: Path) -> None:
    sink = FilePerEpoch(str(tmp_path))
    epoch = SinkEpoch(SinkLineage("out", "job"), 3, "run")
    schema = pa.schema([("k", pa.string())])
    rows = pa.RecordBatchReader.from_batches(schema, [pa.record_batch([["a", "b"]], schema=schema)])
    committable = sink.stage(epoch, 0, rows)
    sink.commit(epoch, [committable])
    sink.commit(epoch, [committable])
    [path] = tmp_path.iterdir()
    assert pq.read_table(path).to_pydict() == {"k": ["a", "b"]}
