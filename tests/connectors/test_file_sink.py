"""The sink of files keeps the contract of sinks in every format, on a disk and on an S3-compatible store."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from object_store import SECRET_KEY, Bucket

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.connectors import FileSink, Sink, SinkEpoch, SinkError, SinkLineage
from statebackend.testing.sinks import Row, SinkContract


def files_of(uri: Any) -> list[bytes]:
    files = CheckpointFileSystem.from_uri(uri)
    return [files.read_file(path) for path in files.list_files() if path.startswith("epoch=") and "/part-" in path]


class TestParquetFiles(SinkContract):
    def new_sink(self, target: Any) -> Sink:
        return FileSink(target)

    def rows_in(self, target: Any) -> list[Row]:
        tables = [pyarrow.parquet.read_table(pa.BufferReader(data)) for data in files_of(target)]
        return [(row["k"], row["n"]) for table in tables for row in table.to_pylist()]


class TestCsvFiles(SinkContract):
    def new_sink(self, target: Any) -> Sink:
        return FileSink(target, "csv")

    def rows_in(self, target: Any) -> list[Row]:
        tables = [pyarrow.csv.read_csv(pa.BufferReader(data)) for data in files_of(target)]
        return [(row["k"], row["n"]) for table in tables for row in table.to_pylist()]


class TestJsonFiles(SinkContract):
    def new_sink(self, target: Any) -> Sink:
        return FileSink(target, "json")

    def rows_in(self, target: Any) -> list[Row]:
        rows = [json.loads(line) for data in files_of(target) for line in data.splitlines()]
        return [(row["k"], row["n"]) for row in rows]


class TestFilesOnS3(TestParquetFiles):
    secrets = (SECRET_KEY,)

    @pytest.fixture
    def target(self, bucket: Bucket) -> Any:
        return bucket.uri("target", user=f"tests:{SECRET_KEY}@")

    @pytest.fixture
    def second_target(self, bucket: Bucket) -> Any:
        return bucket.uri("second", user=f"tests:{SECRET_KEY}@")

    @pytest.fixture
    def target_of(self, bucket: Bucket) -> Any:
        count = iter(range(1000))
        return lambda: bucket.uri(f"target-{next(count)}", user=f"tests:{SECRET_KEY}@")


def test_times_and_nulls_in_json_and_a_column_called_epoch(tmp_path: Path) -> None:
    sink, epoch = FileSink(tmp_path, "json"), SinkEpoch(SinkLineage("out", "job"), 0, "run")
    table = pa.table({"at": [dt.datetime(2024, 5, 1), None], "ß": ["é", None]})
    sink.commit(epoch, [sink.stage(epoch, 0, table.to_reader())])
    [data] = files_of(tmp_path)
    assert [json.loads(line) for line in data.splitlines()] == [
        {"at": "2024-05-01 00:00:00", "ß": "é"},
        {"at": None, "ß": None},
    ]
    for wrong in (b"bytes", float("nan")):
        with pytest.raises(SinkError, match="a row has no form in JSON"):
            sink.stage(epoch, 0, pa.table({"wrong": [wrong]}).to_reader())
    with pytest.raises(SinkError, match="adds a column 'epoch'"):
        sink.stage(epoch, 0, pa.table({"Epoch": [1]}).to_reader())
    with pytest.raises(ValueError, match="file_format is 'xml'; it is one of parquet, csv, json"):
        FileSink(tmp_path, "xml")  # type: ignore[arg-type]


def test_maps_with_text_as_keys_are_objects_in_json(tmp_path: Path) -> None:
    sink, epoch = FileSink(tmp_path, "json"), SinkEpoch(SinkLineage("out", "job"), 0, "run")
    text = pa.map_(pa.string(), pa.list_(pa.map_(pa.string(), pa.int64())))
    table = pa.table(
        {
            "text": pa.array([[("a", [[("b", 1)], None])], None], text),
            "number": pa.array([[(1, 2)], []], pa.map_(pa.int64(), pa.int64())),
        }
    )
    sink.commit(epoch, [sink.stage(epoch, 0, table.to_reader())])
    [data] = files_of(tmp_path)
    assert [json.loads(line) for line in data.splitlines()] == [
        {"text": {"a": [{"b": 1}, None]}, "number": [[1, 2]]},
        {"text": None, "number": []},
    ]


def test_a_start_rejects_later_epochs_before_anything_is_staged(tmp_path: Path) -> None:
    """A parent job that continued after the savepoint has committed epoch 1."""
    parent = SinkLineage("out", "parent")
    for epoch_id in range(2):
        epoch = SinkEpoch(parent, epoch_id, "run")
        sink = FileSink(tmp_path, "csv")
        sink.commit(epoch, [sink.stage(epoch, 0, pa.table({"n": [epoch_id]}).to_reader())])
    FileSink(tmp_path, "csv").recover(SinkLineage("out", "job"), 1)
    with pytest.raises(SinkError, match=r"epoch=000000000001 exists, but this job has not completed epoch 1"):
        FileSink(tmp_path, "csv").recover(SinkLineage("out", "job"), 0)
