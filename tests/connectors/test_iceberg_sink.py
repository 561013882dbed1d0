"""The Iceberg sink passes the sink contract, on a disk and on an S3-compatible store."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import pickle
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlparse

import pyarrow as pa
import pytest
from object_store import ACCESS_KEY, SECRET_KEY, Bucket
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform
from pyiceberg.types import LongType, NestedField, UUIDType
from pyiceberg.utils.config import Config

from statebackend.checkpoint.metadata import SavepointIdentity
from statebackend.connectors import IcebergSink, Sink, SinkEpoch, SinkError, SinkLineage
from statebackend.testing.sinks import Row, SinkContract

pytestmark = pytest.mark.slow

LINEAGE = SinkLineage("out", "job")


def catalog_of(directory: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"}


def name_of(target: Path) -> str:
    return f"tests.{target.name.replace('-', '_')}"


def loaded(target: Path, properties: dict[str, str] | None = None) -> Table:
    return SqlCatalog("lake", **(properties or catalog_of(target.parent))).load_table(name_of(target))


def table_rows(table: Table) -> list[Row]:
    return [(row["k"], row["n"]) for row in table.scan().to_arrow().to_pylist()]


@contextlib.contextmanager
def failing(*, is_committed: bool) -> Iterator[None]:
    commit = SqlCatalog.commit_table

    def fail(self: SqlCatalog, *arguments: Any) -> None:
        if is_committed:
            commit(self, *arguments)
        raise OSError("the connection is lost")

    with mock.patch.object(SqlCatalog, "commit_table", fail):
        yield


class TestIcebergOnDisk(SinkContract):
    options: dict[str, Any] = {}  # noqa: RUF012

    def properties(self, target: Any) -> dict[str, str]:
        return catalog_of(target.parent)

    def new_sink(self, target: Any) -> Sink:
        return IcebergSink(name_of(target), "lake", self.properties(target), **self.options)

    def rows_in(self, target: Any) -> list[Row]:
        try:
            return table_rows(loaded(target, self.properties(target)))
        except NoSuchTableError:
            return []

    def faults(self) -> Sequence[Callable[[], Any]]:
        return [lambda: failing(is_committed=False), lambda: failing(is_committed=True)]


@pytest.mark.extended
class TestIcebergWithPartitions(TestIcebergOnDisk):
    options = {"partition_by": ["k", "bucket(4, n)"]}  # noqa: RUF012


@pytest.mark.extended
class TestIcebergOfVersion1(TestIcebergOnDisk):
    options = {"table_properties": {"format-version": "1", "commit.manifest-merge.enabled": "false"}}  # noqa: RUF012
    # The commit is tested on a disk, with the same code.
    test_a_kill_before_any_line_of_a_commit_loses_and_duplicates_no_rows = None


@pytest.mark.extended
class TestIcebergOnS3(TestIcebergOnDisk):
    secrets = (SECRET_KEY,)
    # The commit is tested on a disk, with the same code.
    test_a_kill_before_any_line_of_a_commit_loses_and_duplicates_no_rows = None

    @pytest.fixture(autouse=True)
    def _store(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def properties(self, target: Any) -> dict[str, str]:
        return {
            **catalog_of(target.parent),
            "warehouse": f"s3://{self.bucket.name}/warehouse",
            "s3.endpoint": f"http://127.0.0.1:{self.bucket.server.port}",
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            "s3.region": "us-east-1",
        }

    def broken_sink(self, target: Any) -> Sink:
        return IcebergSink(name_of(target), "lake", {**self.properties(target), "warehouse": "s3://no-such-bucket/w"})


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "rows"


def sink_of(target: Path, **options: Any) -> IcebergSink:
    return IcebergSink(name_of(target), "lake", catalog_of(target.parent), **options)


def stage(sink: IcebergSink, epoch_id: int, table: pa.Table, run_id: str = "run") -> bytes:
    return sink.stage(SinkEpoch(LINEAGE, epoch_id, run_id), 0, table.to_reader())


def write(sink: IcebergSink, epoch_id: int, table: pa.Table) -> None:
    sink.commit(SinkEpoch(LINEAGE, epoch_id, "run"), [stage(sink, epoch_id, table)])


def numbers(*values: int | None) -> pa.Table:
    return pa.table({"k": [f"k{value}" for value in values], "n": pa.array(values, pa.int64())})


def numbers_in(target: Path) -> list[int]:
    return sorted(n for _, n in table_rows(loaded(target)))


def test_rows_are_split_by_transforms_and_filters_find_them(target: Path) -> None:
    days = [
        dt.datetime(2024, 5, 1, 23, 59, tzinfo=dt.timezone.utc),
        dt.datetime(1969, 12, 31, 1, tzinfo=dt.timezone.utc),
        None,
    ]
    table = pa.table(
        {
            "at": pa.array(days * 2, pa.timestamp("us", "Europe/Berlin")),
            "k": pa.array([0, 1, 2, 3, None, -1], pa.int16()),
            "t": pa.array(["abc", "abd", None, "", "xyz", "x" * 5000]),
            "price": pa.array([decimal.Decimal("-1.50")] * 6, pa.decimal128(9, 2)),
            "data": pa.array([b"\x00\xff", None] * 3),
            "nested": pa.array([[{"a": 1}], [{"a": None}], []] * 2, pa.list_(pa.struct([("a", pa.int32())]))),
            "list": pa.array([[1], None, []] * 2),
            "ratio": pa.array([float("nan"), 1.0, None, float("inf"), -0.0, 0.5]),
        }
    )
    partition_by = ["day(at)", "bucket(4, k)", "truncate(2, t)", "price", "data"]
    sink = sink_of(target, partition_by=partition_by)
    write(sink, 0, table)
    iceberg = loaded(target)
    assert [str(one.transform) for one in iceberg.spec().fields] == [
        "day",
        "bucket[4]",
        "truncate[2]",
        "identity",
        "identity",
    ]
    back = iceberg.scan().to_arrow()
    assert back.num_rows == 6
    for column in ("k", "t", "price", "data", "nested", "list"):
        assert sorted(map(repr, back[column].to_pylist())) == sorted(map(repr, table[column].to_pylist()))
    for condition, rows in {
        "k = 0": 1,
        "t = ''": 1,
        "t is null": 1,
        "price = -1.50": 6,
        "at < '1970-01-01T00:00:00+00:00'": 2,
        "at >= '2024-05-01T00:00:00+00:00' and at < '2024-05-02T00:00:00+00:00'": 2,
        "at is null": 2,
        "k > 2": 1,
    }.items():
        assert iceberg.scan(condition).to_arrow().num_rows == rows, condition


def test_rows_are_split_by_the_bucket_of_a_time(target: Path) -> None:
    times = [dt.time(0), dt.time(23, 59, 59, 999_999), None]
    table = pa.table({"t": pa.array(times, pa.time64("us")), "n": [1, 2, 3]})
    write(sink_of(target, partition_by=["bucket(7, t)"]), 1, table)
    scan = loaded(target).scan(row_filter="t = '23:59:59.999999'")
    assert scan.to_arrow().to_pylist() == [{"t": times[1], "n": 2}]
    assert len(list(scan.plan_files())) == 1


@pytest.mark.parametrize("transform", [IdentityTransform(), BucketTransform(4)])
@pytest.mark.parametrize("kind", [pa.binary(), pa.uuid()])
def test_rows_are_split_by_uuids(target: Path, kind: pa.DataType, transform: Transform[Any, Any]) -> None:
    catalog = SqlCatalog("lake", **catalog_of(target.parent))
    catalog.create_namespace("tests")
    schema = Schema(NestedField(1, "id", UUIDType()), NestedField(2, "n", LongType()))
    catalog.create_table(name_of(target), schema, partition_spec=PartitionSpec(PartitionField(1, 1000, transform, "p")))
    ids = [uuid.UUID(int=1), None, uuid.UUID(int=2), uuid.UUID(int=1)]
    stored = [None if one is None else one.bytes for one in ids]
    write(sink_of(target), 1, pa.table({"id": pa.array(stored, kind), "n": [0, 1, 2, 3]}))

    table = loaded(target)
    rows = table.scan().to_arrow().sort_by("n").to_pylist()
    assert rows == [{"id": one, "n": number} for number, one in enumerate(ids)]
    by_id = transform.transform(UUIDType())
    partitions = [task.file.partition[0] for task in table.scan().plan_files()]
    assert sorted(partitions, key=str) == sorted({by_id(one) for one in ids}, key=str)


def test_bytes_that_are_no_uuid_fail_before_the_checkpoint(target: Path) -> None:
    write(sink_of(target), 1, pa.table({"id": pa.array([uuid.UUID(int=1).bytes], pa.uuid())}))
    with pytest.raises(SinkError, match=r"the rows of epoch 2 of job/out cannot be written: .*16"):
        stage(sink_of(target), 2, pa.table({"id": [b"short"]}))


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()])
def test_a_number_without_a_truncated_value_fails_before_the_checkpoint(target: Path, kind: pa.DataType) -> None:
    bits = kind.bit_width - 1
    sink = sink_of(target, partition_by=["truncate(3, n)"])
    with pytest.raises(SinkError, match=r"the partition 'n_trunc_3' of a row would be .*, which is too small"):
        stage(sink, 1, pa.table({"n": pa.array([1, -(1 << bits)], kind)}))
    write(sink, 1, pa.table({"n": pa.array([2 - (1 << bits), (1 << bits) - 1], kind)}))
    assert len(list(loaded(target).scan().plan_files())) == 2


def test_statistics_prune_files(target: Path) -> None:
    sink = sink_of(target)
    write(sink, 0, numbers(1, 2, None))
    write(sink, 1, numbers(10, 20))
    assert [len(list(loaded(target).scan(one).plan_files())) for one in ("n < 5", "n > 30", "n is null")] == [1, 0, 1]


def test_files_have_field_ids_so_that_a_column_can_be_renamed(target: Path) -> None:
    write(sink_of(target), 0, numbers(1))
    with loaded(target).update_schema() as update:
        update.rename_column("n", "number")
    assert loaded(target).scan().to_arrow().to_pylist() == [{"k": "k1", "number": 1}]
    write(sink_of(target), 1, numbers(2).rename_columns(["k", "number"]))
    assert sorted(loaded(target).scan().to_arrow()["number"].to_pylist()) == [1, 2]


def test_other_writers_are_not_lost_and_not_rolled_back(target: Path) -> None:
    sink = sink_of(target)
    write(sink, 0, numbers(0))
    loaded(target).append(numbers(100))
    write(sink, 1, numbers(1))
    loaded(target).append(numbers(101))
    assert numbers_in(target) == [0, 1, 100, 101]
    sink.roll_back(LINEAGE, 0)
    assert numbers_in(target) == [0, 100, 101]


def test_tags_and_old_snapshots_are_readable_after_a_rollback_and_a_start(target: Path) -> None:
    sink = sink_of(target)
    for epoch_id in range(3):
        write(sink, epoch_id, numbers(epoch_id))
    table = loaded(target)
    [newest] = [one.snapshot_id for one in [table.current_snapshot()] if one is not None]
    table.manage_snapshots().create_tag(newest, "v1").commit()
    stage(sink, 3, numbers(3))
    [uncommitted] = target.parent.rglob("*/000000000003/*.parquet")
    sink.roll_back(LINEAGE, 0)
    again = sink_of(target)
    again.recover(LINEAGE, 0)
    write(again, 1, numbers(10))
    assert numbers_in(target) == [0, 10]
    tagged = loaded(target).scan().use_ref("v1").to_arrow()
    assert sorted(tagged["n"].to_pylist()) == [0, 1, 2]
    assert not uncommitted.exists()


def test_a_rollback_of_rewritten_files_is_an_error_and_changes_nothing(target: Path) -> None:
    sink = sink_of(target)
    for epoch_id in range(3):
        write(sink, epoch_id, numbers(epoch_id))
    table = loaded(target)
    table.overwrite(table.scan().to_arrow())
    with pytest.raises(SinkError, match=r"cannot remove the epochs after 0: .* added 2 files, and 0 of them"):
        sink.roll_back(LINEAGE, 0)
    assert numbers_in(target) == [0, 1, 2]
    write(sink, 3, numbers(3))
    assert numbers_in(target) == [0, 1, 2, 3]


def test_an_epoch_is_recognised_after_its_snapshot_has_expired(target: Path) -> None:
    sink = sink_of(target)
    write(sink, 0, numbers(0))
    committable = stage(sink, 1, numbers(1))
    epoch = SinkEpoch(LINEAGE, 1, "run")
    sink.commit(epoch, [committable])
    loaded(target).append(numbers(100))
    table = loaded(target)
    with table.maintenance.expire_snapshots() as expire:
        expire.by_ids([one.snapshot_id for one in table.snapshots()[:-1]])
    assert len(loaded(target).snapshots()) == 1
    sink_of(target).commit(epoch, [committable])
    assert numbers_in(target) == [0, 1, 100]
    with pytest.raises(SinkError, match="has epoch 1 of job/out, but the job has completed 0 only"):
        sink_of(target).recover(LINEAGE, 0)
    with pytest.raises(SinkError, match="old snapshots have expired"):
        sink_of(target).roll_back(LINEAGE, 0)


@pytest.mark.parametrize("is_deleting", [False, True])
def test_commits_keep_the_log_of_metadata_and_delete_its_oldest_files_if_the_table_says_so(
    target: Path, is_deleting: bool
) -> None:
    sink = sink_of(target)
    write(sink, 0, numbers(0))
    options = {"delete-after-commit.enabled": str(is_deleting).lower(), "previous-versions-max": "2"}
    with loaded(target).transaction() as transaction:
        transaction.set_properties({f"write.metadata.{name}": value for name, value in options.items()})
    sink = sink_of(target)
    sink.recover(LINEAGE, 0)
    for epoch_id in range(1, 6):
        write(sink, epoch_id, numbers(epoch_id))
    table = loaded(target)
    names = [one.metadata_file for one in table.metadata.metadata_log]
    assert (len(names), len(table.snapshots())) == (2, 6)
    files = {str(path) for path in Path(urlparse(table.metadata_location).path).parent.glob("*.metadata.json")}
    kept = {urlparse(name).path for name in (*names, table.metadata_location)}
    assert kept == files if is_deleting else kept < files


def test_a_job_is_rolled_back_again_and_again(target: Path) -> None:
    sink = sink_of(target)
    for epoch_id in range(4):
        write(sink, epoch_id, numbers(epoch_id))
    sink.roll_back(LINEAGE, 2)
    write(sink, 3, numbers(13))
    sink.roll_back(LINEAGE, 1)
    write(sink, 2, numbers(22))
    sink.roll_back(LINEAGE, 0)
    assert numbers_in(target) == [0]


def test_a_rolled_back_table_accepts_its_epochs_again(target: Path) -> None:
    sink = sink_of(target)
    for epoch_id in range(3):
        write(sink, epoch_id, numbers(epoch_id))
    table = loaded(target)
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()
    again = sink_of(target)
    again.recover(LINEAGE, 0)
    write(again, 1, numbers(10))
    assert numbers_in(target) == [0, 10]


@pytest.mark.parametrize("is_own", [False, True])
def test_a_conflict_is_retried_unless_the_epoch_is_there(target: Path, is_own: bool) -> None:
    """Another writer, or an earlier driver of the job, commits between the look-up of the epoch and the commit."""
    sink = sink_of(target)
    write(sink, 0, numbers(0))
    epoch = SinkEpoch(LINEAGE, 1, "run")
    committable = stage(sink, 1, numbers(1))
    commit = SqlCatalog.commit_table
    others = iter([True])

    def conflicting(self: SqlCatalog, *arguments: Any) -> Any:
        if next(others, False):
            if is_own:
                sink_of(target).commit(epoch, [committable])
            else:
                loaded(target).append(numbers(100))
        return commit(self, *arguments)

    with mock.patch.object(SqlCatalog, "commit_table", conflicting):
        sink.commit(epoch, [committable])
    assert numbers_in(target) == ([0, 1] if is_own else [0, 1, 100])


class ReadingCatalog(SqlCatalog):
    """A custom catalog that loads the table at each commit."""


@pytest.mark.parametrize(("catalog", "loads"), [(SqlCatalog, 0), (ReadingCatalog, 2)])
def test_a_commit_to_a_sql_catalog_starts_from_the_metadata_of_the_last_commit(
    target: Path, catalog: type[SqlCatalog], loads: int
) -> None:
    properties = {**catalog_of(target.parent), "py-catalog-impl": f"{catalog.__module__}.{catalog.__name__}"}
    del properties["type"]
    sink = IcebergSink(name_of(target), "lake", properties)
    write(sink, 0, numbers(0))
    staged = [(SinkEpoch(LINEAGE, epoch_id, "run"), [stage(sink, epoch_id, numbers(epoch_id))]) for epoch_id in (1, 2)]
    with mock.patch.object(SqlCatalog, "load_table", autospec=True, side_effect=SqlCatalog.load_table) as load:
        for epoch, committables in staged:
            sink.commit(epoch, committables)
    assert load.call_count == loads
    table = loaded(target)
    assert len(table.snapshots()) == len(table.history()) == 3
    assert [one.parent_snapshot_id for one in table.snapshots()] == [
        None,
        *(one.snapshot_id for one in table.snapshots()[:2]),
    ]
    assert numbers_in(target) == [0, 1, 2]


def test_a_commit_keeps_what_other_writers_have_changed_since_the_last_commit(target: Path) -> None:
    sink = sink_of(target)
    write(sink, 0, numbers(0))
    staged = [(SinkEpoch(LINEAGE, epoch_id, "run"), [stage(sink, epoch_id, numbers(epoch_id))]) for epoch_id in (1, 2)]
    other = loaded(target)
    other.append(numbers(100))
    with other.transaction() as transaction:
        transaction.set_properties({"owner": "other"})
    with other.update_schema() as update:
        update.add_column("extra", LongType())
    sink.commit(*staged[0])
    with loaded(target).transaction() as transaction:
        transaction.set_properties({"owner": "another"})
    sink.commit(*staged[1])
    table = loaded(target)
    assert table.properties["owner"] == "another"
    assert table.schema().column_names == ["k", "n", "extra"]
    assert len(table.snapshots()) == 4
    assert numbers_in(target) == [0, 1, 2, 100]


def test_a_new_column_and_a_wider_type_need_the_option(target: Path) -> None:
    price, long_price = decimal.Decimal("1.5"), decimal.Decimal("12345.5")
    narrow = pa.table({"k": ["k0"], "n": pa.array([0], pa.int32()), "p": pa.array([price], pa.decimal128(4, 1))})
    wide = pa.table({"n": [2**40], "p": pa.array([long_price], pa.decimal128(6, 1)), "extra": [True]})
    write(sink_of(target), 0, narrow)
    sink = sink_of(target)
    sink.recover(LINEAGE, 0)
    with pytest.raises(
        SinkError, match=r"column 'n' is int32 in the table and int64 in the rows: .*pass evolve_schema"
    ):
        stage(sink, 1, wide)
    with pytest.raises(SinkError, match="the table has no column 'extra': pass evolve_schema=True"):
        stage(sink, 1, wide.select(["extra"]))
    sink = sink_of(target, evolve_schema=True)
    sink.recover(LINEAGE, 0)
    write(sink, 1, wide)
    write(sink, 2, narrow)
    rows = loaded(target).scan().to_arrow().sort_by("n").to_pylist()
    assert [(row["k"], row["n"], row["p"], row["extra"]) for row in rows] == [
        ("k0", 0, price, None),
        ("k0", 0, price, None),
        (None, 2**40, long_price, True),
    ]
    with pytest.raises(SinkError, match="column 'n' is int64 in the table and string in the rows: convert"):
        stage(sink, 3, pa.table({"n": ["1"]}))


def test_nested_types_that_iceberg_does_not_have_are_widened(target: Path) -> None:
    pytest.importorskip("pyarrow", "25", reason="earlier releases cannot convert a null list of a fixed size")
    nested = {
        "smallints": (pa.list_(pa.int16()), [[1, None], None, []]),
        "struct": (pa.struct([("a", pa.uint8()), ("b", pa.list_(pa.int8()))]), [{"a": 255, "b": [-1]}, None, None]),
        "map": (pa.map_(pa.string(), pa.map_(pa.int16(), pa.uint32())), [[("a", [(1, None)])], None, []]),
        "large": (pa.large_list(pa.large_string()), [["a", None], None, []]),
        "fixed": (pa.list_(pa.float32(), 2), [[1.0, 2.0], None, [3.0, None]]),
        "time": (pa.list_(pa.time32("ms")), [[dt.time(1)], None, []]),
    }
    rows = pa.table({name: pa.array(values, kind) for name, (kind, values) in nested.items()})
    for epoch_id in (1, 2):
        write(sink_of(target), epoch_id, rows)
    assert loaded(target).scan().to_arrow().to_pylist() == rows.to_pylist() * 2


def test_a_column_that_another_writer_added_is_found(target: Path) -> None:
    sink = sink_of(target)
    write(sink, 0, numbers(0))
    with loaded(target).update_schema() as update:
        update.union_by_name(pa.schema([("extra", pa.bool_())]))
    write(sink, 1, numbers(1).append_column("extra", pa.array([True])))
    assert sorted(numbers_in(target)) == [0, 1]


def test_a_namespace_that_another_subtask_creates_at_the_same_time_is_used(target: Path) -> None:
    create = SqlCatalog.create_namespace

    def late(self: SqlCatalog, namespace: Any, *_: Any) -> None:
        create(self, namespace)
        with mock.patch.object(SqlCatalog, "namespace_exists", return_value=False):
            create(self, namespace)

    with mock.patch.object(SqlCatalog, "create_namespace", late):
        write(sink_of(target), 0, numbers(0))
    assert numbers_in(target) == [0]


def test_subtasks_that_change_the_schema_at_the_same_time_all_succeed(target: Path) -> None:
    table = numbers(1).append_column("extra", pa.array([True]))
    committables: list[bytes] = []
    barrier = threading.Barrier(4)
    write(sink_of(target), 0, numbers(0))

    def run(index: int) -> None:
        sink = sink_of(target, evolve_schema=True)
        barrier.wait()
        committables.append(sink.stage(SinkEpoch(LINEAGE, 1, "run"), index, table.to_reader()))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink_of(target).commit(SinkEpoch(LINEAGE, 1, "run"), committables)
    assert numbers_in(target) == [0, 1, 1, 1, 1]


def test_a_required_column_without_a_value_fails_before_the_checkpoint(target: Path) -> None:
    catalog = SqlCatalog("lake", **catalog_of(target.parent))
    catalog.create_namespace("tests")
    catalog.create_table(name_of(target), pa.schema([("k", pa.string()), pa.field("n", pa.int64(), nullable=False)]))
    sink = sink_of(target)
    sink.recover(LINEAGE, None)
    for rows in (numbers(1, None), numbers(1).select(["k"])):
        with pytest.raises(SinkError, match="column 'n' of the table is required, and a row has no value"):
            stage(sink, 0, rows)
    write(sink, 0, numbers(1))
    assert numbers_in(target) == [1]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_files_of_an_earlier_partition_spec_are_added(target: Path, is_restarted: bool) -> None:
    epoch = SinkEpoch(LINEAGE, 1, "run")
    sink = sink_of(target)
    write(sink, 0, numbers(0))
    committables = [stage(sink, 1, numbers(1))]
    with loaded(target).update_spec() as update:
        update.add_identity("k")
    committables.append(stage(sink_of(target), 1, numbers(2, 3)))
    (sink_of(target) if is_restarted else sink).commit(epoch, committables)
    assert numbers_in(target) == [0, 1, 2, 3]
    assert loaded(target).scan("k = 'k2'").to_arrow()["n"].to_pylist() == [2]
    assert sorted(one["spec_id"] for one in loaded(target).inspect.files().to_pylist()) == [0, 0, 1, 1]
    sink_of(target).roll_back(LINEAGE, 0)
    assert numbers_in(target) == [0]


def test_a_table_that_was_replaced_or_dropped_is_an_error(target: Path) -> None:
    epoch = SinkEpoch(LINEAGE, 1, "run")
    sink = sink_of(target)
    write(sink, 0, numbers(0))
    committable = stage(sink, 1, numbers(1))
    SqlCatalog("lake", **catalog_of(target.parent)).drop_table(name_of(target))
    with pytest.raises(SinkError, match=r"does not exist any longer\. Restore it"):
        sink.commit(epoch, [committable])
    write(sink_of(target), 0, numbers(0))
    with pytest.raises(SinkError, match="the table was replaced by another one"):
        sink.commit(epoch, [committable])


def test_staged_files_that_another_program_removed_are_an_error_and_the_table_stays_readable(target: Path) -> None:
    sink = sink_of(target)
    write(sink, 0, numbers(0))
    committable = stage(sink, 1, numbers(1))
    [staged] = set(target.parent.rglob("*/000000000001/*.parquet"))
    content = staged.read_bytes()
    staged.unlink()
    with pytest.raises(SinkError, match=rf"1 of 1 files of epoch 1 .* such as .*{staged.name}: .* Restore the files"):
        sink.commit(SinkEpoch(LINEAGE, 1, "run"), [committable])
    assert numbers_in(target) == [0]
    staged.write_bytes(content)
    sink.commit(SinkEpoch(LINEAGE, 1, "run"), [committable])
    assert numbers_in(target) == [0, 1]


def test_a_parent_that_continued_after_the_savepoint_is_an_error(target: Path) -> None:
    sink = sink_of(target)
    for epoch_id in range(3):
        write(sink, epoch_id, numbers(epoch_id))
    child = SinkLineage("out", "child", SavepointIdentity("job", 1, 1))
    with pytest.raises(SinkError, match="has epoch 2 of job/out, but the savepoint was taken after epoch 1"):
        sink_of(target).recover(child, 1)
    sink_of(target).recover(SinkLineage("out", "child", SavepointIdentity("job", 2, 1)), 2)


def test_staged_files_of_a_crash_are_removed_and_committed_ones_stay(target: Path) -> None:
    sink = sink_of(target)
    write(sink, 0, numbers(0))
    stage(sink, 1, numbers(1), "dead")
    assert len(list(target.parent.rglob("dead-*.parquet"))) == 1
    sink_of(target).recover(LINEAGE, 0)
    assert len(list(target.parent.rglob("statebackend-*/*/*.parquet"))) == 1
    assert numbers_in(target) == [0]


@pytest.mark.parametrize("committable", [b"", b"{}", b"[1]", b'{"version": 9}'])
def test_the_committable_of_another_sink_is_an_error(target: Path, committable: bytes) -> None:
    with pytest.raises(SinkError, match="committable"):
        sink_of(target).commit(SinkEpoch(LINEAGE, 0, "run"), [committable])


def test_secrets_of_the_configuration_are_not_in_errors(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__S3__SECRET_ACCESS_KEY", "s3cret")
    sink = sink_of(target)
    with mock.patch("pyiceberg.catalog._ENV_CONFIG", Config()):
        write(sink, 1, numbers(1))
    failure = mock.Mock(side_effect=OSError("no access with s3cret"))
    with mock.patch.object(SqlCatalog, "load_table", failure), pytest.raises(SinkError, match=r"with \*\*\*") as raised:
        sink.recover(LINEAGE, 1)
    assert "s3cret" not in str(raised.value)
    in_a_task = pickle.loads(pickle.dumps(sink))
    with mock.patch("pyarrow.fs.SubTreeFileSystem", failure), pytest.raises(SinkError, match=r"with \*\*\*"):
        stage(in_a_task, 2, numbers(2))


def test_invalid_arguments_are_errors(target: Path) -> None:
    with pytest.raises(TypeError, match=r"IcebergSink: partition_by is a list of columns, such as \['day\(at\)'\]"):
        IcebergSink("shop.rows", partition_by="day(at)")
    for name in ("flat", ".a", "a."):
        with pytest.raises(ValueError, match="is not the name of a table with its namespace"):
            IcebergSink(name)
    for text in ("day(at", "bucket(16, )", "a,b", ""):
        with pytest.raises(ValueError, match="is no partition"):
            sink_of(target, partition_by=[text])
    for partition in ("missing", "week(k)", "day(k)"):
        with pytest.raises(SinkError, match=r"the table cannot be prepared"):
            stage(sink_of(target, partition_by=[partition]), 0, numbers(0))


def test_a_local_job_restarts_and_rolls_back(tmp_path: Path, target: Path) -> None:
    from spark_job_fixture import CountWords

    from statebackend.local import LocalStreamEnvironment

    def run(words: str, **options: Any) -> None:
        environment = LocalStreamEnvironment(job_dir=tmp_path / "job", epoch_size=2)
        stream = environment.from_elements([(word, 1) for word in words], "word string, number int").key_by("word")
        counted = stream.process(CountWords(), uid="words", schema="word string, times bigint, total bigint")
        counted.sink_to(sink_of(target), uid="out")
        environment.execute("job", **options)

    def rows() -> list[tuple[str, int]]:
        return sorted((row["word"], row["times"]) for row in loaded(target).scan().to_arrow().to_pylist())

    run("abab")
    run("aa")
    assert rows() == [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 1), ("b", 2)]
    run("bb", roll_back_to=1)
    assert rows() == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("b", 3), ("b", 4)]


@pytest.mark.spark
@pytest.mark.extended
def test_a_spark_job_dies_at_the_commit_and_restarts(spark: Any, tmp_path: Path, target: Path) -> None:
    from spark_job_fixture import WordCount, pickled_by_value

    word_count = WordCount(spark, tmp_path)
    word_count.add_batch([("a", 1), ("b", 2)])
    word_count.add_batch([("a", 3)])
    commits = iter([False, True])
    commit = IcebergSink.commit

    def crashing(self: IcebergSink, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        commit(self, epoch, committables)
        if next(commits, False):
            raise RuntimeError("the driver dies after the commit")

    with pickled_by_value():
        with mock.patch.object(IcebergSink, "commit", crashing), pytest.raises(Exception, match="the driver dies"):
            word_count.run(sink_of(target))
        word_count.add_batch([("b", 4)])
        word_count.run(sink_of(target))
    found = [tuple(row.values()) for row in loaded(target).scan().to_arrow().to_pylist()]
    assert sorted(found) == word_count.expected()
