"""Compaction of file sinks: no row is lost wherever the process is killed, and readers see none twice."""

from __future__ import annotations

import decimal
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from object_store import SECRET_KEY, Bucket
from objects_in_memory import MemoryStorage

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.s3_storage import S3Storage
from statebackend.connectors import FileSink, ParquetSink, SinkEpoch, SinkError, SinkLineage

pytestmark = pytest.mark.slow

JOB = SinkLineage("out", "job")
EPOCHS = 6


class KilledError(BaseException):
    """The process is killed. The code under test must not catch this."""


@pytest.fixture(params=["disk", "objects"])
def new_target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Return new, empty targets: directories, or places in an object store in memory or of a server."""
    count = iter(range(1000))
    if request.param == "disk":
        return lambda: tmp_path / f"target-{next(count)}"
    if request.param == "s3":
        bucket: Bucket = request.getfixturevalue("bucket")
        return lambda: bucket.uri(f"target-{next(count)}", user=f"tests:{SECRET_KEY}@")
    stores: dict[str, MemoryStorage] = defaultdict(MemoryStorage)
    monkeypatch.setattr(S3Storage, "at", lambda location: stores[location.root])
    return lambda: f"s3://bucket/target-{next(count)}"


ALSO_WITH_A_SERVER = pytest.mark.parametrize("new_target", ["disk", "objects", "s3"], indirect=True)


def table(epoch_id: int) -> pa.Table:
    return pa.table({"k": ["a", "b"], "n": [2 * epoch_id, 2 * epoch_id + 1]})


def written(
    target: Any, sink: FileSink | None = None, epochs: int = EPOCHS, rows: pa.Table | None = None, first: int = 0
) -> list[tuple[SinkEpoch, list[bytes]]]:
    """Commit some epochs. Return those that a restarted job would commit again."""
    sink = sink or ParquetSink(target)
    commits = []
    for epoch_id in range(first, first + epochs):
        epoch = SinkEpoch(JOB, epoch_id, "run")
        committables = [sink.stage(epoch, 0, (rows or table(epoch_id)).to_reader())]
        sink.commit(epoch, committables)
        commits.append((epoch, committables))
    return commits


def numbers(target: Any, paths: list[str]) -> list[int]:
    files = CheckpointFileSystem.from_uri(target)
    root = files.location("")
    tables = [
        pyarrow.parquet.read_table(pa.BufferReader(files.read_file(path.removeprefix(f"{root}/")))) for path in paths
    ]
    return sorted(n for one in tables for n in one["n"].to_pylist())


def listed(target: Any) -> list[str]:
    """The files that a reader finds if it lists the marked directories."""
    found = CheckpointFileSystem.from_uri(target).list_files()
    marked = {path.rpartition("/")[0] for path in found if path.startswith("epoch=") and path.endswith("/_committable")}
    return [path for path in found if path.split("/")[0] in marked and "/part-" in path]


ALL = list(range(2 * EPOCHS))


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Return a function after which the process is killed before the n-th change of a file."""
    left = [10**9]

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise KilledError
            return act(*args, **kwargs)

        return call

    for name in ("write_file", "create_file", "upload", "copy_file", "delete", "delete_directory", "move_directory"):
        monkeypatch.setattr(CheckpointFileSystem, name, counted(getattr(CheckpointFileSystem, name)))
    monkeypatch.setattr(os, "mkdir", counted(os.mkdir))
    monkeypatch.setattr(os, "replace", counted(os.replace))

    def arm(count: int) -> None:
        left[0] = count

    yield arm
    left[0] = 10**9


@pytest.mark.parametrize("is_second", [False, True])
@pytest.mark.extended
def test_a_compaction_killed_between_any_two_steps_is_finished_by_the_next(
    new_target: Callable[[], Any], kill_at: Callable[[int], None], is_second: bool
) -> None:
    rows = ALL[:10] if is_second else ALL[:6]
    for count in range(1000):
        target = new_target()
        commits = written(target, epochs=3)
        if is_second:
            ParquetSink(target).compact(keep=1, at_least=2)
            commits += written(target, epochs=2, first=3)
        kill_at(count)
        is_killed = True
        try:
            ParquetSink(target).compact(keep=1, at_least=2)
            is_killed = False
        except KilledError:
            pass
        kill_at(10**9)
        assert numbers(target, ParquetSink(target).files()) == rows, f"killed before change {count}"
        seen = numbers(target, listed(target))
        assert len(seen) == len(set(seen)), f"killed before change {count}: rows are visible twice"
        # A restarted job repeats the commits of the checkpoints that it retains.
        restarted = ParquetSink(target)
        restarted.recover(JOB, commits[-1][0].epoch_id)
        for epoch, committables in commits:
            restarted.commit(epoch, committables)
        assert numbers(target, ParquetSink(target).files()) == rows, f"killed before change {count}"
        ParquetSink(target).compact(keep=1, at_least=2)
        assert numbers(target, ParquetSink(target).files()) == numbers(target, listed(target)) == rows
        assert len(listed(target)) == 2
        leftovers = CheckpointFileSystem.from_uri(target).list_files("_staging")
        assert is_killed or not leftovers
        if not is_killed:
            assert count > 10, "nothing was killed"
            return
    pytest.fail("the compaction never came to its end")


@pytest.mark.extended_after(1)
@ALSO_WITH_A_SERVER
def test_epochs_continue_and_are_compacted_again(new_target: Callable[[], Any]) -> None:
    target = new_target()
    sink = ParquetSink(target)
    assert sink.compact() == 0
    written(target)
    assert sink.compact(keep=1) == 0, "there are too few"
    assert sink.compact(keep=1, at_least=2) == EPOCHS - 1
    written(target, epochs=3, first=EPOCHS)
    assert sink.compact(keep=1, at_least=2) == 4, "three epochs and the compacted directory"
    assert numbers(target, sink.files()) == numbers(target, listed(target)) == list(range(2 * EPOCHS + 6))
    assert len(sink.files()) == 2
    with pytest.raises(SinkError, match=r"has the rows of epochs 0 to 7, which were compacted"):
        sink.roll_back(JOB, 4)


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("file_format", ["csv", "json", "parquet"])
def test_many_compactions_leave_few_files_and_rewrite_each_row_a_few_times(tmp_path: Path, file_format: Any) -> None:
    sink = FileSink(tmp_path, file_format, partition_by=["k"])
    rewritten, kept = 0, 0
    for first in range(0, 96, 3):
        written(tmp_path, sink, epochs=3, first=first)
        before = set(listed(tmp_path))
        assert sink.compact(keep=1, at_least=2) >= 2
        rewritten += len(before - set(listed(tmp_path)))
        kept = max(kept, len(listed(tmp_path)))
    # There are two files per epoch, and each is rewritten at least once.
    assert 2 * 95 <= rewritten <= 4 * 95
    assert kept <= 2 * 6


def test_full_files_and_large_directories_are_not_compacted_again(new_target: Callable[[], Any]) -> None:
    target = new_target()
    written(target)
    sink = ParquetSink(target)
    size_bytes = CheckpointFileSystem.from_uri(target).size(listed(target)[0])
    sink.compact(keep=1, at_least=2, target_file_bytes=2 * size_bytes)
    full = {path for path in listed(target) if path.startswith("epoch=" + "0" * 19)}
    written(target, epochs=5, first=EPOCHS)
    assert sink.compact(keep=1, at_least=2, target_file_bytes=2 * size_bytes) == 5
    assert full <= set(listed(target)), "its files are full"
    large = new_target()
    written(large, epochs=2, rows=pa.table({"k": ["a"] * 5000, "n": [*range(5000)]}))
    written(large, epochs=4, first=2)
    sink = ParquetSink(large)
    assert sink.compact(keep=4, at_least=2) == 2
    before = set(listed(large))
    assert sink.compact(keep=1, at_least=2) == 3
    assert len(before & set(listed(large))) == 2, "the large directory and the newest epoch"


def test_an_older_attempt_at_a_compacted_epoch_is_not_committed(new_target: Callable[[], Any]) -> None:
    target = new_target()
    written(target)
    sink = ParquetSink(target)
    sink.compact(keep=2, at_least=2)
    epoch = SinkEpoch(JOB, 1, "other")
    committables = [sink.stage(epoch, 0, table(1).to_reader())]
    with pytest.raises(SinkError):
        sink.commit(epoch, committables)
    assert numbers(target, sink.files()) == ALL


@pytest.mark.parametrize("new_target", ["objects"], indirect=True)
def test_commits_of_all_attempts_are_recognised_after_their_epochs_were_compacted(
    new_target: Callable[[], Any],
) -> None:
    target = new_target()
    sink = ParquetSink(target)
    commits = []
    for epoch_id in range(EPOCHS):
        epoch = SinkEpoch(JOB, epoch_id, f"run-{epoch_id // 2}")
        commits.append((epoch, [sink.stage(epoch, 0, table(epoch_id).to_reader())]))
        sink.commit(*commits[-1])
    sink.compact(keep=1, at_least=2)
    for commit in commits:
        sink.commit(*commit)
    assert numbers(target, sink.files()) == ALL


@ALSO_WITH_A_SERVER
def test_a_rollback_returns_to_the_newest_compacted_epoch_and_not_before(new_target: Callable[[], Any]) -> None:
    target = new_target()
    written(target)
    sink = ParquetSink(target)
    sink.compact(keep=2, at_least=2)
    with pytest.raises(SinkError, match=r"has the rows of epochs 0 to 3, which were compacted"):
        sink.roll_back(JOB, 2)
    assert numbers(target, sink.files()) == ALL
    sink.roll_back(JOB, 3)
    assert numbers(target, sink.files()) == ALL[:8]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (b'{"format": 2, "marks": []}', "plan of compaction 1 was written by a newer version"),
        (b'{"format": 0, "marks": []}', "plan of compaction 1 is damaged"),
        (b'{"marks": []}', "plan of compaction 1 is damaged"),
        (b"[" * 100_000, "plan of compaction 1 is damaged"),
    ],
)
def test_a_plan_of_another_version_or_a_damaged_one_is_rejected_and_changes_nothing(
    tmp_path: Path, plan: bytes, message: str
) -> None:
    written(tmp_path)
    before = listed(tmp_path)
    (tmp_path / "_compactions").mkdir()
    (tmp_path / "_compactions" / "000000000001").write_bytes(plan)
    for use in (lambda sink: sink.compact(keep=1, at_least=2), lambda sink: sink.files()):
        with pytest.raises(SinkError, match=message):
            use(ParquetSink(tmp_path))
    assert listed(tmp_path) == before


def test_a_compaction_fails_if_the_epochs_have_changed_since_it_read_them(
    new_target: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: list[Callable[[FileSink, Any], Any]] = [
        lambda sink, target: sink.compact(keep=1, at_least=2),
        lambda sink, target: sink.roll_back(JOB, 2),
    ]
    for change in changes:
        target = new_target()
        written(target)
        merged = FileSink._merged

        def slow(self: FileSink, *args: Any, target: Any = target, change: Any = change, merged: Any = merged) -> Any:
            monkeypatch.setattr(FileSink, "_merged", merged)
            change(ParquetSink(target), target)
            return merged(self, *args)

        before = FileSink._merged
        monkeypatch.setattr(FileSink, "_merged", slow)
        with pytest.raises(SinkError):
            ParquetSink(target).compact(keep=1, at_least=2)
        assert FileSink._merged is before
        expected = ALL if change is changes[0] else ALL[:6]
        assert numbers(target, ParquetSink(target).files()) == numbers(target, listed(target)) == expected


@pytest.mark.parametrize("file_format", ["csv", "json", "parquet"])
def test_partitions_columns_and_formats_are_kept(tmp_path: Path, file_format: Any) -> None:
    sink = FileSink(tmp_path, file_format, partition_by=["k"])
    written(tmp_path, sink=sink)
    other = SinkEpoch(JOB, EPOCHS, "run")
    sink.commit(other, [sink.stage(other, 0, pa.table({"k": ["a"], "n": [99], "new": ["x\ny"]}).to_reader())])
    last = SinkEpoch(JOB, EPOCHS + 1, "run")
    sink.commit(last, [sink.stage(last, 0, table(EPOCHS + 1).to_reader())])
    before = len(sink.files())
    assert sink.compact(keep=1, at_least=2) == EPOCHS + 1
    files = [Path(path) for path in sink.files()]
    assert len(files) < before
    rows = []
    for path in files:
        if file_format == "csv":
            options = pyarrow.csv.ParseOptions(newlines_in_values=True)
            found = pyarrow.csv.read_csv(path, parse_options=options).to_pylist()
        elif file_format == "json":
            found = [json.loads(line) for line in path.read_text().splitlines()]
        else:
            found = pyarrow.parquet.read_table(pa.BufferReader(path.read_bytes())).to_pylist()
        rows += [(path.parent.name, row["n"], row.get("new")) for row in found]
    expected = [(f"k={'ab'[n % 2]}", n, None) for n in (*ALL, 2 * EPOCHS + 2, 2 * EPOCHS + 3)] + [("k=a", 99, "x\ny")]
    assert sorted(rows, key=str) == sorted(expected, key=str)


@pytest.mark.spark
def test_spark_reads_the_files_and_the_directory(spark: Any, tmp_path: Path) -> None:
    written(tmp_path)
    sink = ParquetSink(tmp_path)
    sink.compact(keep=1, at_least=2)
    by_files = spark.read.option("basePath", str(tmp_path)).parquet(*sink.files())
    for frame in (by_files, spark.read.parquet(str(tmp_path))):
        assert sorted(row.n for row in frame.collect()) == ALL
        assert {row.epoch for row in frame.collect()} == {EPOCHS - 2, EPOCHS - 1}


def test_files_are_filled_to_the_target_size(new_target: Callable[[], Any]) -> None:
    target = new_target()
    written(target)
    sink = ParquetSink(target)
    size_bytes = CheckpointFileSystem.from_uri(target).size(listed(target)[0])
    assert sink.compact(keep=1, at_least=2, target_file_bytes=2 * size_bytes + 2) == EPOCHS - 1
    assert len(listed(target)) == (EPOCHS - 1 + 1) // 2 + 1
    assert numbers(target, sink.files()) == numbers(target, listed(target)) == ALL


def test_a_target_size_that_is_not_positive_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="target_file_bytes is 0; it must be positive"):
        ParquetSink(tmp_path).compact(target_file_bytes=0)


@pytest.mark.parametrize("file_format", ["csv", "json", "parquet"])
def test_a_damaged_file_is_not_compacted_away(tmp_path: Path, file_format: Any) -> None:
    sink = FileSink(tmp_path, file_format)
    written(tmp_path, sink=sink)
    damaged = tmp_path / listed(tmp_path)[1]
    damaged.write_bytes(damaged.read_bytes()[:-3] + b"7" * 3)
    before = listed(tmp_path)
    with pytest.raises(SinkError, match=r"epoch 1 cannot be compacted: .*Restore the file from a backup"):
        sink.compact(keep=1, at_least=2)
    assert listed(tmp_path) == before
    assert not CheckpointFileSystem.from_uri(tmp_path).list_files("_staging")


@pytest.mark.extended_after(2)
@pytest.mark.parametrize(("other", "is_second"), [("compact", False), ("roll_back", False), ("compact", True)])
def test_another_process_may_finish_a_compaction_between_any_two_steps(
    new_target: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, other: str, is_second: bool
) -> None:
    names = ("write_file", "create_file", "upload", "copy_file", "delete", "delete_directory", "move_directory")
    rows = ALL[:10] if is_second else ALL[:6]
    acts = {name: getattr(CheckpointFileSystem, name) for name in names}
    places = [(CheckpointFileSystem, name) for name in names] + [(os, "mkdir"), (os, "replace")]

    for count in range(1000):
        target = new_target()
        written(target, epochs=3)
        if is_second:
            ParquetSink(target).compact(keep=1, at_least=2)
            written(target, epochs=2, first=3)
        left = [count]

        def counted(act: Callable[..., Any], left: list[int] = left, target: Any = target) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                left[0] -= 1
                if left[0] == -1:
                    if other == "compact":
                        ParquetSink(target).compact(keep=1, at_least=3)
                    else:
                        ParquetSink(target).roll_back(JOB, 2)
                return act(*args, **kwargs)

            return call

        with monkeypatch.context() as patched:
            for owner, name in places:
                patched.setattr(owner, name, counted(acts.get(name) or getattr(os, name)))
            ParquetSink(target).compact(keep=1, at_least=2)
        assert numbers(target, ParquetSink(target).files()) == numbers(target, listed(target)) == rows, count
        if left[0] >= 0:
            assert count > 10, "nothing ran in between"
            return
    pytest.fail("the compaction never came to its end")


@pytest.mark.extended
@ALSO_WITH_A_SERVER
def test_what_a_killed_compaction_has_staged_is_deleted_later(
    new_target: Callable[[], Any], kill_at: Callable[[int], None]
) -> None:
    target = new_target()
    written(target, epochs=4)
    kill_at(2)
    with pytest.raises(KilledError):
        ParquetSink(target).compact(keep=1, at_least=2)
    kill_at(10**9)
    ParquetSink(target).compact(keep=2, at_least=2)
    sink = ParquetSink(target)
    for epoch_id in range(4, 7):
        epoch = SinkEpoch(JOB, epoch_id, "run-2")
        sink.commit(epoch, [sink.stage(epoch, 0, table(epoch_id).to_reader())])
    sink.compact(keep=1, at_least=2)
    assert not CheckpointFileSystem.from_uri(target).list_files("_staging")


def test_odd_partitions_and_nested_types_are_kept(tmp_path: Path) -> None:
    texts = ["a/b", "a=b", "100%", "%2F", "", None, "ü ☃", ".", "..", "_x", "\x00\x01\x7f", "\u0085", "a\\b", "x" * 200]
    nested = pa.array(
        [{"l": [{"m": [("a", n)]}], "d": None} for n in range(len(texts))],
        pa.struct(
            [("l", pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.int64()))]))), ("d", pa.decimal128(38, 10))]
        ),
    )
    zeros = [decimal.Decimal("0E-10")] * len(texts)
    rows = pa.table({"=k/%": texts, "z": pa.array(zeros, pa.decimal128(20, 10)), "nested": nested})
    sink = ParquetSink(tmp_path, partition_by=["=k/%", "z"])
    written(tmp_path, sink, epochs=3, rows=rows)
    assert sink.compact(keep=1, at_least=2) == 2
    found = []
    for file in map(Path, sink.files()):
        column, _, text = file.parent.parent.name.partition("=")
        assert (unquote(column), file.parent.name) == ("=k/%", "z=0.0000000000")
        found += [(unquote(text), row) for row in pyarrow.parquet.ParquetFile(file).read()["nested"].to_pylist()]
    expected = [
        (text or "__HIVE_DEFAULT_PARTITION__", row) for text, row in zip(texts, nested.to_pylist(), strict=True)
    ]
    assert sorted(found, key=str) == sorted(expected * 3, key=str)


def test_a_partition_with_too_long_a_name_is_an_error_that_names_it(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path, partition_by=["k"])
    with pytest.raises(SinkError, match=r"column 'k'.*too long"):
        sink.stage(SinkEpoch(JOB, 0, "run"), 0, pa.table({"k": ["x" * 300], "n": [1]}).to_reader())
