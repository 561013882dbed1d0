"""The file sink passes the sink contract in every format, on a disk and on an S3-compatible store."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet
import pytest
from object_store import SECRET_KEY, Bucket

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.connectors import FileSink, ParquetSink, Sink, SinkEpoch, SinkError, SinkLineage
from statebackend.testing.sinks import Row, SinkContract

pytestmark = pytest.mark.slow


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


@pytest.mark.extended
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
        with pytest.raises(SinkError, match=rf"{tmp_path}.*a row has no form in JSON.*Convert the values"):
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
    """The parent job continued after the savepoint and has committed epoch 1."""
    parent = SinkLineage("out", "parent")
    for epoch_id in range(2):
        epoch = SinkEpoch(parent, epoch_id, "run")
        sink = FileSink(tmp_path, "csv")
        sink.commit(epoch, [sink.stage(epoch, 0, pa.table({"n": [epoch_id]}).to_reader())])
    FileSink(tmp_path, "csv").recover(SinkLineage("out", "job"), 1)
    with pytest.raises(SinkError, match=r"epoch=000000000001 exists, but this job has not completed epoch 1"):
        FileSink(tmp_path, "csv").recover(SinkLineage("out", "job"), 0)


@pytest.mark.parametrize("options", [{"file_format": "csv"}, {"file_format": "json"}, {"partition_by": ["k"]}])
def test_epochs_without_rows_leave_no_directories(tmp_path: Path, options: Any) -> None:
    rows = pa.table({"k": ["a"], "n": [1]})
    for epoch_id, batch in enumerate([rows[:0], rows, rows[:0]]):
        sink, epoch = FileSink(tmp_path, **options), SinkEpoch(SinkLineage("out", "job"), epoch_id, "run")
        staged = [one for one in (sink.stage(epoch, index, batch.to_reader()) for index in range(2)) if one]
        if staged:
            sink.commit(epoch, staged)
    assert [path.name for path in tmp_path.iterdir() if path.name != "_staging"] == ["epoch=000000000001"]
    assert list((tmp_path / "_staging").iterdir()) == []


def test_partition_columns_are_directories_with_escaped_values(tmp_path: Path) -> None:
    values = {
        "day": [dt.date(2024, 5, 1)] * 3 + [None],
        "at": [dt.datetime(2024, 5, 1, 12, 0, 0, 500_000), dt.datetime(2024, 5, 1), None, None],
        "te xt": ["a/b=c%", "", "\u00e9 [1]", "?"],
        "n": [1, 2, 3, 4],
    }
    sink = ParquetSink(tmp_path, partition_by=["day", "at", "te xt"])
    epoch = SinkEpoch(SinkLineage("out", "job"), 7, "run")
    table = pa.table(values)
    sink.commit(epoch, [sink.stage(epoch, 0, table.to_reader())])
    null = "__HIVE_DEFAULT_PARTITION__"
    paths = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("part-*")}
    assert paths == {
        "epoch=000000000007/day=2024-05-01/at=2024-05-01 12%3A00%3A00.5/te xt=a%2Fb%3Dc%25",
        f"epoch=000000000007/day=2024-05-01/at=2024-05-01 00%3A00%3A00/te xt={null}",
        f"epoch=000000000007/day=2024-05-01/at={null}/te xt=\u00e9 %5B1%5D",
        f"epoch=000000000007/day={null}/at={null}/te xt=%3F",
    }
    found = pyarrow.dataset.dataset(tmp_path, partitioning="hive").to_table().sort_by("n")
    assert found["te xt"].to_pylist() == ["a/b=c%", None, "\u00e9 [1]", "?"]
    assert found["n"].to_pylist() == [1, 2, 3, 4]
    assert found["epoch"].to_pylist() == [7] * 4
    for wrong, match in ((["other"], "no column 'other'"), (values, "leave one out")):
        with pytest.raises(SinkError, match=match):
            ParquetSink(tmp_path, partition_by=list(wrong)).stage(epoch, 0, table.to_reader())
    with pytest.raises(SinkError, match="cannot be partitioned by column 'f'"):
        ParquetSink(tmp_path, partition_by=["f"]).stage(epoch, 0, pa.table({"f": [1.5], "n": [1]}).to_reader())
    assert ParquetSink(tmp_path, partition_by=["n"]).stage(epoch, 0, table.slice(0, 0).to_reader()) == b""


class TestPartitionedFiles(SinkContract):
    def new_sink(self, target: Any) -> Sink:
        return FileSink(target, "csv", partition_by=["k"])

    def rows_in(self, target: Any) -> list[Row]:
        if not Path(target).exists():
            return []
        files = [str(path) for path in Path(target).glob("epoch=*/*/part-*")]
        table = pyarrow.dataset.dataset(files, format="csv", partitioning=pyarrow.dataset.partitioning(flavor="hive"))
        return [(row["k"], row["n"]) for row in table.to_table().to_pylist()] if files else []


@pytest.mark.extended
class TestPartitionedFilesOnS3(TestFilesOnS3):
    def new_sink(self, target: Any) -> Sink:
        return ParquetSink(target, partition_by=["k"])

    def rows_in(self, target: Any) -> list[Row]:
        files = CheckpointFileSystem.from_uri(target)
        rows = []
        for path in files.list_files():
            if path.startswith("epoch=") and "/part-" in path:
                table = pyarrow.parquet.read_table(pa.BufferReader(files.read_file(path)))
                rows += [(unquote(path.split("/")[1].removeprefix("k=")), n) for n in table["n"].to_pylist()]
        return rows


def test_more_partitions_than_open_files(tmp_path: Path) -> None:
    sink, epoch = FileSink(tmp_path, "json", partition_by=["p"]), SinkEpoch(SinkLineage("out", "job"), 0, "run")
    table = pa.table({"p": [n % 100 for n in range(1000)], "n": list(range(1000))})
    sink.commit(epoch, [sink.stage(epoch, 0, pa.Table.from_batches(table.to_batches(300)).to_reader())])
    found = [json.loads(line)["n"] for path in tmp_path.rglob("part-*") for line in path.read_text().splitlines()]
    assert sorted(found) == list(range(1000))


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None, "", 'say "x"\nand', "\\N", None]),
        pa.array([1, None, 3, None]),
        pa.array([dt.datetime(2024, 5, 1, 12), None]),
        pa.array([b"a", None]),
    ],
    ids=lambda column: str(column.type),
)
def test_a_null_in_a_csv_file_of_one_column_differs_from_an_empty_text(tmp_path: Path, column: pa.Array) -> None:
    sink, epoch = FileSink(tmp_path, "csv"), SinkEpoch(SinkLineage("out", "job"), 0, "run")
    table = pa.table({"only": column})
    sink.commit(epoch, [sink.stage(epoch, 0, table.to_reader(max_chunksize=2))])
    [data] = files_of(tmp_path)
    found = pyarrow.csv.read_csv(
        pa.BufferReader(data),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            null_values=["\\N"], strings_can_be_null=True, quoted_strings_can_be_null=False, column_types=table.schema
        ),
    )
    assert found["only"].to_pylist() == column.to_pylist()


@pytest.mark.spark
def test_spark_reads_partitions_and_nulls(spark: Any, tmp_path: Path) -> None:
    epoch = SinkEpoch(SinkLineage("out", "job"), 0, "run")
    rows = [{"p": "a/b=c%", "q": 1, "n": 1}, {"p": None, "q": 2, "n": 2}, {"p": "\u00e9 [1]", "q": None, "n": 3}]
    sink: Sink = ParquetSink(tmp_path / "partitions", partition_by=["p", "q"])
    sink.commit(epoch, [sink.stage(epoch, 0, pa.Table.from_pylist(rows).to_reader())])
    found = spark.read.parquet(str(tmp_path / "partitions")).orderBy("n").collect()
    assert [{name: row[name] for name in ("p", "q", "n")} for row in found] == rows
    sink = FileSink(tmp_path / "csv", "csv")
    sink.commit(epoch, [sink.stage(epoch, 0, pa.table({"only": ["a", None, "", "b"]}).to_reader())])
    read = spark.read.schema("only string, epoch int").option("header", True).option("nullValue", "\\N")
    assert [row.only for row in read.csv(str(tmp_path / "csv")).collect()] == ["a", None, "", "b"]


@pytest.mark.parametrize("file_format", ["csv", "json", "parquet"])
def test_two_columns_with_one_name_are_an_error(tmp_path: Path, file_format: Any) -> None:
    rows = pa.table([["a"], ["b"]], names=["k", "k"])
    with pytest.raises(SinkError, match=r"the rows have two columns 'k'\. Rename one of them"):
        FileSink(tmp_path, file_format).stage(SinkEpoch(SinkLineage("out", "job"), 0, "run"), 0, rows.to_reader())


@pytest.mark.parametrize(
    ("file_format", "partition_by", "message"),
    [
        (
            "csv",
            [],
            r"column 'm' is map<string, int64>, which CSV cannot store\. Convert the values, or change the type",
        ),
        ("parquet", ["m"], r"rows cannot be partitioned by a column of map<string, int64>\. Convert the values"),
    ],
)
def test_a_type_that_cannot_be_stored_is_an_error_that_names_it(
    tmp_path: Path, file_format: Any, partition_by: list[str], message: str
) -> None:
    rows = pa.table({"k": ["a"], "m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))})
    sink = FileSink(tmp_path, file_format, partition_by=partition_by)
    with pytest.raises(SinkError, match=rf"{tmp_path}.*{message}"):
        sink.stage(SinkEpoch(SinkLineage("out", "job"), 0, "run"), 0, rows.to_reader())


def test_one_text_is_no_list_of_partition_columns(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"ParquetSink: partition_by is a list of columns, such as \['day'\]"):
        ParquetSink(tmp_path, partition_by="day")
    with pytest.raises(TypeError, match=r"FileSink: partition_by is a list of columns, such as \['day'\]"):
        FileSink(tmp_path, partition_by="day")
