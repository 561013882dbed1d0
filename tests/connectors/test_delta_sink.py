"""The Delta sink keeps the contract of sinks, on a disk and on an S3-compatible store."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from object_store import ACCESS_KEY, SECRET_KEY, Bucket

from statebackend.checkpoint.errors import StorageError
from statebackend.checkpoint.metadata import SavepointIdentity
from statebackend.connectors import DeltaSink, Sink, SinkEpoch, SinkError, SinkLineage, staged_parquet
from statebackend.testing.sinks import Row, SinkContract

pytestmark = pytest.mark.slow

LINEAGE = SinkLineage("out", "job")


@contextlib.contextmanager
def failing(*, is_committed: bool) -> Iterator[None]:
    commit = DeltaTable.create_write_transaction

    def fail(self: DeltaTable, *arguments: Any, **options: Any) -> None:
        if is_committed:
            commit(self, *arguments, **options)
        raise OSError("the connection is lost")

    with mock.patch.object(DeltaTable, "create_write_transaction", fail):
        yield


class TestDeltaOnDisk(SinkContract):
    def new_sink(self, target: Any) -> Sink:
        return DeltaSink(target)

    def rows_in(self, target: Any) -> list[Row]:
        return table_rows(DeltaTable(target)) if DeltaTable.is_deltatable(str(target)) else []

    def faults(self) -> Sequence[Callable[[], Any]]:
        return [lambda: failing(is_committed=False), lambda: failing(is_committed=True)]


@pytest.mark.extended
class TestDeltaWithPartitions(TestDeltaOnDisk):
    def new_sink(self, target: Any) -> Sink:
        return DeltaSink(target, partition_by=["k"])


def table_rows(table: DeltaTable) -> list[Row]:
    return [(row["k"], row["n"]) for row in table.to_pyarrow_table().to_pylist()]


@pytest.mark.extended
class TestDeltaOnS3(SinkContract):
    secrets = (SECRET_KEY,)
    # The commit is tested on a disk, with the same code.
    test_a_kill_before_any_line_of_a_commit_loses_and_duplicates_no_rows = None

    @pytest.fixture(autouse=True)
    def _store(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.options = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{bucket.server.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
        }

    def uri(self, target: Path) -> str:
        return f"s3://{self.bucket.name}/{target.name}"

    def new_sink(self, target: Any) -> Sink:
        return DeltaSink(self.uri(target), storage_options=self.options)

    def broken_sink(self, target: Any) -> Sink:
        return DeltaSink(f"s3://no-such-bucket/{target.name}", storage_options=self.options)

    def rows_in(self, target: Any) -> list[Row]:
        if not DeltaTable.is_deltatable(self.uri(target), self.options):
            return []
        return table_rows(DeltaTable(self.uri(target), storage_options=self.options))

    def faults(self) -> Sequence[Callable[[], Any]]:
        return [lambda: failing(is_committed=False), lambda: failing(is_committed=True)]


def stage(sink: DeltaSink, epoch_id: int, table: pa.Table, run_id: str = "run") -> bytes:
    return sink.stage(SinkEpoch(LINEAGE, epoch_id, run_id), 0, table.to_reader())


def write(sink: DeltaSink, epoch_id: int, table: pa.Table) -> None:
    sink.commit(SinkEpoch(LINEAGE, epoch_id, "run"), [stage(sink, epoch_id, table)])


def numbers(*values: int | None) -> pa.Table:
    return pa.table({"k": [f"k{value}" for value in values], "n": pa.array(values, pa.int64())})


def test_statistics_and_partition_values_are_in_the_log(tmp_path: Path) -> None:
    utc, berlin = dt.timezone.utc, "Europe/Berlin"
    moment = dt.datetime(2024, 5, 1, 12, 0, 0, 1500, utc)
    table = pa.table(
        {
            "day": pa.array([dt.date(2024, 5, 1), None, dt.date(2024, 5, 1)]),
            "n": pa.array([3, 1, None], pa.int64()),
            "text": ["b", "a", None],
            "at": pa.array([moment] * 3, pa.timestamp("us", berlin)),
            "price": pa.array([decimal.Decimal("1.50")] * 3, pa.decimal128(9, 2)),
            "ratio": pa.array([float("nan"), 1.0, 2.0]),
            "nested": pa.array([{"a": 1}, None, {"a": 2}], pa.struct([("a", pa.int32())])),
            "empty": pa.array([None] * 3, pa.int32()),
        }
    )
    write(DeltaSink(tmp_path, partition_by=["day"]), 0, table)
    delta = DeltaTable(tmp_path)
    back = delta.to_pyarrow_table().sort_by([("text", "descending")]).to_pylist()
    assert [row["day"] for row in back] == [dt.date(2024, 5, 1), None, dt.date(2024, 5, 1)]
    assert {row["at"] for row in back} == {moment}
    added = {row["partition.day"]: row for row in pa.table(delta.get_add_actions(flatten=True)).to_pylist()}
    row = added[dt.date(2024, 5, 1)]
    assert (row["num_records"], row["min.n"], row["max.n"], row["null_count.n"]) == (2, 3, 3, 1)
    assert (row["min.text"], row["max.text"], row["null_count.empty"]) == ("b", "b", 2)
    # The log stores milliseconds, so the bounds are rounded to contain the value.
    assert row["min.at"] == moment.replace(microsecond=1000)
    assert row["max.at"] == moment.replace(microsecond=2000)
    assert row.get("max.ratio") is None
    assert added[None]["num_records"] == 1
    where = [("day", "=", dt.date(2024, 5, 1)), ("n", ">", 2)]
    assert delta.to_pyarrow_table(filters=where).num_rows == 1


def test_bounds_of_a_part_of_a_file_are_not_in_the_log(tmp_path: Path) -> None:
    # Parquet keeps no bounds of the batch with the long text.
    batches = [pa.record_batch({"text": [text]}) for text in ("x" * 5000, "a")]
    write(DeltaSink(tmp_path), 0, pa.Table.from_batches(batches))
    [row] = pa.table(DeltaTable(tmp_path).get_add_actions(flatten=True)).to_pylist()
    assert (row["num_records"], row.get("min.text"), row.get("max.text")) == (2, None, None)


def test_other_writers_are_not_lost_and_not_rolled_back(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path)
    write(sink, 0, numbers(0))
    write_deltalake(tmp_path, numbers(100), mode="append")
    write(sink, 1, numbers(1))
    write_deltalake(tmp_path, numbers(101), mode="append")
    assert sorted(n for _, n in table_rows(DeltaTable(tmp_path))) == [0, 1, 100, 101]
    sink.roll_back(LINEAGE, 0)
    assert sorted(n for _, n in table_rows(DeltaTable(tmp_path))) == [0, 100, 101]


def test_staged_files_are_durable_before_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced_inodes: list[int] = []
    sync = os.fsync

    def sync_file(descriptor: int) -> None:
        synced_inodes.append(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(staged_parquet.os, "fsync", sync_file)
    stage(DeltaSink(tmp_path), 1, numbers(1))
    [file] = tmp_path.rglob("*.parquet")
    assert file.stat().st_ino in synced_inodes


def test_older_versions_are_readable_after_a_rollback_and_a_start(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path)
    for epoch_id in range(3):
        write(sink, epoch_id, numbers(epoch_id))
    version = DeltaTable(tmp_path).version()
    stage(sink, 3, numbers(3))
    [uncommitted] = tmp_path.rglob("*/000000000003/*.parquet")
    sink.roll_back(LINEAGE, 0)
    again = DeltaSink(tmp_path)
    again.recover(LINEAGE, 0)
    write(again, 1, numbers(10))
    assert sorted(n for _, n in table_rows(DeltaTable(tmp_path))) == [0, 10]
    assert sorted(n for _, n in table_rows(DeltaTable(tmp_path, version=version))) == [0, 1, 2]
    assert not uncommitted.exists()


def test_a_job_is_rolled_back_again_and_again(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path)
    for epoch_id in range(4):
        write(sink, epoch_id, numbers(epoch_id))
    sink.roll_back(LINEAGE, 2)
    write(sink, 3, numbers(13))
    sink.roll_back(LINEAGE, 1)
    write(sink, 2, numbers(22))
    sink.roll_back(LINEAGE, 0)
    assert table_rows(DeltaTable(tmp_path)) == [("k0", 0)]


def test_a_repeated_commit_adds_nothing_to_a_compacted_table(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path)
    write(sink, 0, numbers(0))
    epoch, committables = SinkEpoch(LINEAGE, 1, "run"), [stage(sink, 1, numbers(1))]
    sink.commit(epoch, committables)
    DeltaTable(tmp_path).optimize.compact()
    sink.commit(epoch, committables)
    assert sorted(n for _, n in table_rows(DeltaTable(tmp_path))) == [0, 1]


def test_a_rollback_of_compacted_files_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path)
    for epoch_id in range(3):
        write(sink, epoch_id, numbers(epoch_id))
    DeltaTable(tmp_path).optimize.compact()
    with pytest.raises(SinkError, match=r"cannot remove the epochs after 0: .* 2 files were added, and 0 of them"):
        sink.roll_back(LINEAGE, 0)
    assert sorted(n for _, n in table_rows(DeltaTable(tmp_path))) == [0, 1, 2]
    write(sink, 3, numbers(3))
    assert sorted(n for _, n in table_rows(DeltaTable(tmp_path))) == [0, 1, 2, 3]


def test_a_conflict_with_another_writer_is_retried(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path)
    write(sink, 0, numbers(0))
    conflicts = iter([CommitFailedError("conflict"), CommitFailedError("conflict")])
    commit = DeltaTable.create_write_transaction

    def conflicting(self: DeltaTable, *arguments: Any, **options: Any) -> None:
        error = next(conflicts, None)
        if error is not None:
            raise error
        commit(self, *arguments, **options)

    with mock.patch.object(DeltaTable, "create_write_transaction", conflicting):
        write(sink, 1, numbers(1))
    assert sorted(n for _, n in table_rows(DeltaTable(tmp_path))) == [0, 1]


def test_a_new_column_needs_the_option_and_fails_before_the_checkpoint(tmp_path: Path) -> None:
    write(DeltaSink(tmp_path), 0, numbers(0))
    wider = numbers(1).append_column("extra", pa.array([True]))
    sink = DeltaSink(tmp_path)
    sink.recover(LINEAGE, 0)
    with pytest.raises(SinkError, match="the table has no column 'extra': pass evolve_schema=True"):
        stage(sink, 1, wider)
    sink = DeltaSink(tmp_path, evolve_schema=True)
    sink.recover(LINEAGE, 0)
    write(sink, 1, wider)
    write(sink, 2, numbers(2))
    rows = DeltaTable(tmp_path).to_pyarrow_table().sort_by("n").to_pylist()
    assert [(row["n"], row["extra"]) for row in rows] == [(0, None), (1, True), (2, None)]


def test_narrower_rows_are_widened_and_other_types_are_an_error(tmp_path: Path) -> None:
    write(DeltaSink(tmp_path), 0, numbers(0))
    sink = DeltaSink(tmp_path)
    sink.recover(LINEAGE, 0)
    narrow = pa.table({"k": ["k1"], "n": pa.array([1], pa.int32())})
    write(sink, 1, narrow)
    assert sorted(n for _, n in table_rows(DeltaTable(tmp_path))) == [0, 1]
    with pytest.raises(SinkError, match=r"column 'n' is .*long.* in the table and .*string.* in the rows"):
        stage(sink, 2, pa.table({"k": ["k1"], "n": ["1"]}))


def test_a_table_with_other_partitions_is_an_error(tmp_path: Path) -> None:
    write(DeltaSink(tmp_path, partition_by=["k"]), 0, numbers(0))
    with pytest.raises(SinkError, match=r"partitioned by \['k'\]: pass partition_by"):
        write(DeltaSink(tmp_path), 1, numbers(1))
    with pytest.raises(SinkError, match="no column 'day' to partition by"):
        stage(DeltaSink(tmp_path / "other", partition_by=["day"]), 1, numbers(1))


def not_null(path: Path) -> None:
    DeltaTable.create(path, pa.schema([pa.field("k", pa.string()), pa.field("n", pa.int64(), nullable=False)]))


def checked(path: Path) -> None:
    write_deltalake(path, numbers(0))
    DeltaTable(path).alter.add_constraint({"positive": "n >= 0"})


def mapped(path: Path) -> None:
    DeltaTable.create(path, numbers().schema, configuration={"delta.columnMapping.mode": "name"})


def test_a_row_without_a_value_of_a_not_null_column_fails_before_the_checkpoint(tmp_path: Path) -> None:
    not_null(tmp_path)
    sink = DeltaSink(tmp_path)
    sink.recover(LINEAGE, None)
    for rows in (numbers(1, None), numbers(1).select(["k"])):
        with pytest.raises(SinkError, match="column 'n' of the table is NOT NULL"):
            stage(sink, 0, rows)
    write(sink, 0, numbers(1))
    assert table_rows(DeltaTable(tmp_path)) == [("k1", 1)]


@pytest.mark.parametrize(
    ("make", "feature"), [(checked, "delta.constraints.positive"), (mapped, "delta.columnMapping.mode")]
)
def test_a_table_whose_rows_the_sink_cannot_check_is_an_error(
    tmp_path: Path, make: Callable[[Path], None], feature: str
) -> None:
    make(tmp_path)
    sink = DeltaSink(tmp_path)
    with pytest.raises(SinkError, match=f"the table has {feature}, which this sink does not apply"):
        sink.recover(LINEAGE, None)
    with pytest.raises(SinkError, match=f"the table has {feature}"):
        write(sink, 0, numbers(1))


def test_partitions_by_all_columns_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="all columns are in partition_by"):
        stage(DeltaSink(tmp_path, partition_by=["k", "n"]), 0, numbers(1))


def test_a_path_that_was_meant_to_be_a_uri_is_rejected() -> None:
    with pytest.raises(StorageError, match=r"cannot open 's3://bucket/table': the argument is a path"):
        DeltaSink(PurePosixPath("s3://KEY:SECRET@bucket/table"))


def test_the_last_timestamp_is_written(tmp_path: Path) -> None:
    rows = [{"at": dt.datetime.max}]
    write(DeltaSink(tmp_path), 0, pa.Table.from_pylist(rows))
    assert DeltaTable(tmp_path).to_pyarrow_table().to_pylist() == rows


def test_a_table_that_was_replaced_with_its_staged_files_is_an_error_and_stays_readable(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "table")
    write(sink, 0, numbers(0))
    committable = stage(sink, 1, numbers(1))
    shutil.copytree(tmp_path / "table", tmp_path / "backup")
    shutil.rmtree(tmp_path / "table")
    for number in (100, 101):
        write_deltalake(str(tmp_path / "table"), numbers(number), mode="append")
    epoch = SinkEpoch(LINEAGE, 1, "run")
    with pytest.raises(SinkError, match=r"1 of 1 files of epoch 1 .* do not exist any longer, .* Restore the files"):
        sink.commit(epoch, [committable])
    assert sorted(DeltaTable(str(tmp_path / "table")).to_pyarrow_table()["n"].to_pylist()) == [100, 101]
    shutil.rmtree(tmp_path / "table")
    shutil.copytree(tmp_path / "backup", tmp_path / "table")
    sink.commit(epoch, [committable])
    assert sorted(DeltaTable(str(tmp_path / "table")).to_pyarrow_table()["n"].to_pylist()) == [0, 1]


def test_a_parent_that_continued_after_the_savepoint_is_an_error(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path)
    for epoch_id in range(3):
        write(sink, epoch_id, numbers(epoch_id))
    child = SinkLineage("out", "child", SavepointIdentity("job", 1, 1))
    with pytest.raises(SinkError, match="has epoch 2 of job/out, but the savepoint was taken after epoch 1"):
        DeltaSink(tmp_path).recover(child, 1)
    DeltaSink(tmp_path).recover(SinkLineage("out", "child", SavepointIdentity("job", 2, 1)), 2)


def test_a_job_directory_older_than_the_table_is_an_error(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path)
    for epoch_id in range(3):
        write(sink, epoch_id, numbers(epoch_id))
    with pytest.raises(SinkError, match="has epoch 2 of job/out, but the job has completed 1 only"):
        DeltaSink(tmp_path).recover(LINEAGE, 1)


def test_staged_files_of_a_crash_are_removed_and_committed_ones_stay(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path)
    write(sink, 0, numbers(0))
    stage(sink, 1, numbers(1), "dead")
    assert len(list(tmp_path.rglob("dead-*.parquet"))) == 1
    DeltaSink(tmp_path).recover(LINEAGE, 0)
    assert len(list(tmp_path.rglob("*-*.parquet"))) == 1
    assert table_rows(DeltaTable(tmp_path)) == [("k0", 0)]


@pytest.mark.parametrize("committable", [b"", b"{}", b"[1]", b'{"version": 9}'])
def test_the_committable_of_another_sink_is_an_error(tmp_path: Path, committable: bytes) -> None:
    with pytest.raises(SinkError, match="committable"):
        DeltaSink(tmp_path).commit(SinkEpoch(LINEAGE, 0, "run"), [committable])


def test_many_partitions_are_written_with_few_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    class Writer(pq.ParquetWriter):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            opened.append(self)
            assert sum(one.is_open for one in opened) <= 64

    monkeypatch.setattr(staged_parquet.pq, "ParquetWriter", Writer)
    table = pa.table({"k": [f"k{value % 200}" for value in range(1000)], "n": list(range(1000))})
    write(DeltaSink(tmp_path, partition_by=["k"]), 0, table)
    assert len(opened) >= 200
    assert sorted(n for _, n in table_rows(DeltaTable(tmp_path))) == list(range(1000))


def test_a_local_job_restarts_and_rolls_back(tmp_path: Path) -> None:
    from spark_job_fixture import CountWords

    from statebackend.local import LocalStreamEnvironment

    def run(words: str, **options: Any) -> None:
        environment = LocalStreamEnvironment(job_dir=tmp_path / "job", epoch_size=2)
        stream = environment.from_elements([(word, 1) for word in words], "word string, number int").key_by("word")
        counted = stream.process(CountWords(), uid="words", schema="word string, times bigint, total bigint")
        counted.sink_to(DeltaSink(tmp_path / "table"), uid="out")
        environment.execute("job", **options)

    def rows() -> list[tuple[str, int]]:
        return sorted(
            (row["word"], row["times"]) for row in DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
        )

    run("abab")
    run("aa")
    assert rows() == [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 1), ("b", 2)]
    run("bb", roll_back_to=1)
    assert rows() == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("b", 3), ("b", 4)]


@pytest.mark.spark
@pytest.mark.extended
def test_a_spark_job_dies_at_the_commit_and_restarts(spark: Any, tmp_path: Path) -> None:
    from spark_job_fixture import WordCount, pickled_by_value

    word_count = WordCount(spark, tmp_path)
    word_count.add_batch([("a", 1), ("b", 2)])
    word_count.add_batch([("a", 3)])
    table = tmp_path / "table"
    commits = iter([False, True])
    commit = DeltaSink.commit

    def crashing(self: DeltaSink, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        commit(self, epoch, committables)
        if next(commits, False):
            raise RuntimeError("the driver dies after the commit")

    with pickled_by_value():
        with mock.patch.object(DeltaSink, "commit", crashing), pytest.raises(Exception, match="the driver dies"):
            word_count.run(DeltaSink(table))
        word_count.add_batch([("b", 4)])
        word_count.run(DeltaSink(table))
    found = [tuple(row.values()) for row in DeltaTable(table).to_pyarrow_table().to_pylist()]
    assert sorted(found) == word_count.expected()


@pytest.mark.parametrize(
    ("committable", "message"),
    [
        (b'{"version": 2}', "version 2, and this version reads up to 1"),
        (b'{"version": 0}', "its committable is not one of DeltaSink"),
        (b"[" * 100_000, "its committable is not one of DeltaSink"),
    ],
)
def test_a_committable_of_another_version_is_an_error(tmp_path: Path, committable: bytes, message: str) -> None:
    with pytest.raises(SinkError, match=message):
        DeltaSink(tmp_path).commit(SinkEpoch(LINEAGE, 1, "run"), [committable])


def test_unsigned_numbers_are_stored_as_signed_ones(tmp_path: Path) -> None:
    """Delta Lake has no unsigned types. A reader fails at values that do not fit the signed type."""
    types = [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    values = {str(one): pa.array([0, None, min(2**one.bit_width, 2**63) - 1], one) for one in types}
    values["nested"] = pa.array([[2**32 - 1], [], None], pa.list_(pa.uint32()))
    sink = DeltaSink(tmp_path)
    write(sink, 0, pa.table(values))
    assert DeltaTable(tmp_path).to_pyarrow_table().to_pylist() == pa.table(values).to_pylist()
    with pytest.raises(SinkError, match=r"cannot be written: Integer value .* not in range.*Convert the values"):
        stage(sink, 1, pa.table({**values, "uint64": pa.array([2**64 - 1] * 3, pa.uint64())}))


@pytest.mark.parametrize("kind", [pa.duration("us"), pa.time64("us")])
def test_a_type_that_delta_lake_does_not_have_is_an_error_that_names_the_column(
    tmp_path: Path, kind: pa.DataType
) -> None:
    with pytest.raises(SinkError) as caught:
        stage(DeltaSink(tmp_path), 0, pa.table({"k": ["a"], "t": pa.array([1], kind)}))
    expected = f"Delta Lake cannot store column 't' of type {kind}. Change its type, or drop it from the rows"
    assert str(caught.value).endswith(expected), "no stack trace"


def test_one_text_is_no_list_of_partition_columns(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"DeltaSink: partition_by is a list of columns, such as \['day'\]"):
        DeltaSink(tmp_path, partition_by="day")
