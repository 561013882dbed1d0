"""Spark's source log is captured at one batch, and a new query continues after that batch."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from statebackend.checkpoint.errors import UnsafePathError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.metadata import ReadSource
from statebackend.spark.sources.progress import (
    SOURCE_ORDER_FILE_NAME,
    SourceProgressError,
    appear_at_once,
    capture_source_progress,
    check_log_is_whole,
    read_offsets,
    restore_source_progress,
    source_order,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def file_entry(number: int) -> str:
    return json.dumps({"path": f"file:///in/{number}", "timestamp": 1, "batchId": number})


def write_log(directory: Path, last: int, *, log_offset: Callable[[int], str], version: str = "v1") -> None:
    """Offsets and commits of batches 0..last, in the form that Spark writes."""
    directory.mkdir()
    (directory / "metadata").write_text('{"id":"q"}')
    for kind in ("offsets", "commits"):
        (directory / kind).mkdir()
    for batch in range(last + 1):
        (directory / "offsets" / str(batch)).write_text(f"{version}\n{{}}\n{log_offset(batch)}")
        (directory / "commits" / str(batch)).write_text("v1\n{}")


def write_file_log(directory: Path, source: str, entries: dict[str, list[int]]) -> None:
    (directory / "sources" / source).mkdir(parents=True)
    for name, numbers in entries.items():
        text = "\n".join(["v1", *map(file_entry, numbers)])
        (directory / "sources" / source / name).write_text(text)


def offset_of(batch: int) -> str:
    return json.dumps({"logOffset": batch})


def test_entries_beyond_the_offset_of_the_batch_are_left_out(tmp_path: Path) -> None:
    write_log(tmp_path / "q", 4, log_offset=offset_of)
    write_file_log(tmp_path / "q", "0", {str(n): [n] for n in range(6)})
    (tmp_path / "q" / "offsets" / ".2.crc").write_bytes(b"crc")
    (tmp_path / "q" / "sources" / "0" / ".2.crc").write_bytes(b"crc")

    files = capture_source_progress(str(tmp_path / "q"), 2)

    assert sorted(files) == [
        "commits/1",
        "commits/2",
        "metadata",
        "offsets/1",
        "offsets/2",
        "sources/0/0",
        "sources/0/1",
        "sources/0/2",
    ]
    assert files["offsets/2"] == read_offsets(str(tmp_path / "q"), 2)


def test_a_batch_without_its_commit_is_captured_without_it(tmp_path: Path) -> None:
    write_log(tmp_path / "q", 2, log_offset=offset_of)
    (tmp_path / "q" / "commits" / "2").unlink()
    assert "commits/2" not in capture_source_progress(str(tmp_path / "q"), 2)


def test_entries_since_the_last_compacted_one_are_sufficient(tmp_path: Path) -> None:
    write_log(tmp_path / "q", 7, log_offset=offset_of)
    write_file_log(
        tmp_path / "q",
        "0",
        {"3": [3], "4.compact": [0, 1, 2, 3, 4], "5": [5], "6": [6], "7": [7], "9.compact": list(range(10))},
    )
    files = capture_source_progress(str(tmp_path / "q"), 6)
    assert [name for name in sorted(files) if name.startswith("sources")] == [
        "sources/0/4.compact",
        "sources/0/5",
        "sources/0/6",
    ]


def test_a_file_log_with_a_hole_is_rejected(tmp_path: Path) -> None:
    write_log(tmp_path / "q", 3, log_offset=offset_of)
    write_file_log(tmp_path / "q", "0", {"0": [0], "2": [2], "3": [3]})
    with pytest.raises(SourceProgressError, match=r"sources/0/1 is missing"):
        capture_source_progress(str(tmp_path / "q"), 3)


def compacted_log(directory: Path) -> None:
    write_log(directory, 7, log_offset=offset_of)
    own = {"3": [3], "4.compact": [0, 1, 2, 3, 4], "5": [5], "6": [6], "7": [7]}
    write_file_log(directory, "0", own)
    order = [ReadSource("FileSource[/in]", "files", "0")]
    CheckpointFileSystem.from_uri(directory).write_file(SOURCE_ORDER_FILE_NAME, source_order(order))


@pytest.mark.parametrize("name", ["4.compact", "5", "7"])
@pytest.mark.parametrize(
    "content", ["", "v1\n", "v1\n" + file_entry(8), "v1\n" + file_entry(4)[:-2], "v2\n" + file_entry(4)]
)
def test_each_damaged_entry_that_spark_reads_is_named(tmp_path: Path, name: str, content: str) -> None:
    compacted_log(tmp_path / "q")
    check_log_is_whole(str(tmp_path / "q"))
    (tmp_path / "q" / "sources" / "0" / name).write_text(content)
    with pytest.raises(SourceProgressError, match=f"sources/0/{name} is damaged"):
        check_log_is_whole(str(tmp_path / "q"))
    with pytest.raises(SourceProgressError, match=f"sources/0/{name} is damaged"):
        capture_source_progress(str(tmp_path / "q"), 7)


@pytest.mark.parametrize(("removed", "named"), [("4.compact", "0"), ("5", "5"), ("7", "7")])
def test_each_missing_entry_that_spark_reads_is_named(tmp_path: Path, removed: str, named: str) -> None:
    compacted_log(tmp_path / "q")
    (tmp_path / "q" / "sources" / "0" / "3").unlink()
    check_log_is_whole(str(tmp_path / "q"))
    (tmp_path / "q" / "sources" / "0" / removed).unlink()
    with pytest.raises(SourceProgressError, match=f"sources/0/{named} is missing"):
        check_log_is_whole(str(tmp_path / "q"))


def test_other_sources_keep_their_complete_log(tmp_path: Path) -> None:
    write_log(tmp_path / "q", 1, log_offset=lambda batch: f'{{"topic":{{"0":{batch}}}}}')
    (tmp_path / "q" / "sources" / "0").mkdir(parents=True)
    (tmp_path / "q" / "sources" / "0" / "0").write_text('v1\n{"topic":{"0":0}}')
    assert "sources/0/0" in capture_source_progress(str(tmp_path / "q"), 1)


def test_a_source_that_has_not_read_has_no_entries(tmp_path: Path) -> None:
    write_log(tmp_path / "q", 0, log_offset=lambda batch: f"{offset_of(batch)}\n-")
    write_file_log(tmp_path / "q", "0", {"0": [0]})
    write_file_log(tmp_path / "q", "1", {"0": [0]})
    files = capture_source_progress(str(tmp_path / "q"), 0)
    assert [name for name in sorted(files) if name.startswith("sources")] == ["sources/0/0"]


def test_a_source_whose_offset_only_resembles_one_of_files_keeps_its_complete_log(tmp_path: Path) -> None:
    write_log(tmp_path / "q", 0, log_offset=lambda batch: '{"logOffset":true}')
    (tmp_path / "q" / "sources" / "0").mkdir(parents=True)
    (tmp_path / "q" / "sources" / "0" / "7").write_text("of its own")
    order = [ReadSource("another", "another", "0")]
    CheckpointFileSystem.from_uri(tmp_path / "q").write_file(SOURCE_ORDER_FILE_NAME, source_order(order))
    assert "sources/0/7" in capture_source_progress(str(tmp_path / "q"), 0)


def test_the_first_entry_of_a_log_is_truncated_like_the_others(tmp_path: Path) -> None:
    write_log(tmp_path / "q", 0, log_offset=offset_of)
    write_file_log(tmp_path / "q", "0", {"0": [0], "1": [1]})
    order = [ReadSource("FileSource[/in]", "files", "0")]
    CheckpointFileSystem.from_uri(tmp_path / "q").write_file(SOURCE_ORDER_FILE_NAME, source_order(order))
    files = capture_source_progress(str(tmp_path / "q"), 0)
    assert [name for name in files if name.startswith("sources")] == ["sources/0/0"]
    assert SOURCE_ORDER_FILE_NAME in files
    # Every missing entry that the offset needs is reported, even the first one.
    (tmp_path / "q" / "sources" / "0" / "0").unlink()
    (tmp_path / "q" / "sources" / "0" / "1").unlink()
    with pytest.raises(SourceProgressError, match="sources/0/0 is missing"):
        capture_source_progress(str(tmp_path / "q"), 0)


def test_a_log_that_the_offsets_mention_but_is_missing_is_rejected(tmp_path: Path) -> None:
    write_log(tmp_path / "q", 0, log_offset=lambda batch: '{"logOffset":1}\n{"logOffset":0}')
    write_file_log(tmp_path / "q", "0", {"0": [0], "1": [1]})
    with pytest.raises(SourceProgressError, match="is ambiguous which of them belong to sources/0"):
        capture_source_progress(str(tmp_path / "q"), 0)


def test_named_sources_are_found_by_name(tmp_path: Path) -> None:
    write_log(
        tmp_path / "q",
        0,
        log_offset=lambda batch: 'b:{"logOffset":1}\na:{"logOffset":0}',
        version="v2",
    )
    write_file_log(tmp_path / "q", "a", {str(n): [n] for n in range(3)})
    write_file_log(tmp_path / "q", "b", {str(n): [n] for n in range(3)})
    files = capture_source_progress(str(tmp_path / "q"), 0)
    assert [name for name in sorted(files) if name.startswith("sources")] == [
        "sources/a/0",
        "sources/b/0",
        "sources/b/1",
    ]


def test_a_named_source_of_files_without_an_offset_of_files_is_rejected(tmp_path: Path) -> None:
    write_log(tmp_path / "q", 0, log_offset=lambda batch: 'a:{"topic":{"0":1}}', version="v2")
    write_file_log(tmp_path / "q", "a", {"0": [0]})
    with pytest.raises(SourceProgressError, match="offsets/0 has no logOffset for sources/a, which is a file log"):
        capture_source_progress(str(tmp_path / "q"), 0)


@pytest.mark.parametrize("lines", [1, 3])
def test_offsets_of_more_or_fewer_sources_than_the_order_has_are_rejected(tmp_path: Path, lines: int) -> None:
    write_log(tmp_path / "q", 0, log_offset=lambda batch: "\n".join([offset_of(batch)] * lines))
    for source in ("0", "1"):
        write_file_log(tmp_path / "q", source, {"0": [0]})
    order = [ReadSource(f"FileSource[/{name}]", name, str(place)) for place, name in enumerate("ab")]
    CheckpointFileSystem.from_uri(tmp_path / "q").write_file(SOURCE_ORDER_FILE_NAME, source_order(order))
    with pytest.raises(SourceProgressError, match=f"offsets/0 has {lines} offsets, and .* has 2 sources"):
        capture_source_progress(str(tmp_path / "q"), 0)


def test_files_that_cannot_all_be_written_are_all_removed(tmp_path: Path) -> None:
    def failing() -> Iterator[tuple[str, bytes]]:
        yield "metadata", b"{}"
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        appear_at_once(failing(), str(tmp_path / "parent" / "log"))
    assert list((tmp_path / "parent").iterdir()) == []


def test_offsets_that_match_no_sources_are_rejected(tmp_path: Path) -> None:
    write_log(tmp_path / "q", 0, log_offset=lambda batch: '{"logOffset":2}\n{"logOffset":2}\n{"logOffset":1}')
    write_file_log(tmp_path / "q", "0", {str(n): [n] for n in range(3)})
    write_file_log(tmp_path / "q", "1", {str(n): [n] for n in range(3)})
    with pytest.raises(SourceProgressError, match="more than once"):
        capture_source_progress(str(tmp_path / "q"), 0)


def test_an_unknown_format_and_a_missing_batch_are_rejected(tmp_path: Path) -> None:
    write_log(tmp_path / "q", 0, log_offset=offset_of, version="v3")
    write_file_log(tmp_path / "q", "0", {"0": [0]})
    with pytest.raises(SourceProgressError, match="only v1 and v2"):
        capture_source_progress(str(tmp_path / "q"), 0)
    with pytest.raises(SourceProgressError, match=r"offsets/5 is missing"):
        capture_source_progress(str(tmp_path / "q"), 5)


def test_state_of_sparks_own_operators_is_rejected(tmp_path: Path) -> None:
    write_log(tmp_path / "q", 0, log_offset=offset_of)
    (tmp_path / "q" / "state" / "0").mkdir(parents=True)
    with pytest.raises(SourceProgressError, match="Spark's own stateful operators"):
        capture_source_progress(str(tmp_path / "q"), 0)


FILES = {"metadata": b'{"id":"q"}', "offsets/0": b"v1\n{}\n-"}


def test_progress_is_restored_into_a_new_or_empty_directory_only(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new/deeper"):
        restore_source_progress(FILES, str(tmp_path / name))
        assert (tmp_path / name / "offsets" / "0").read_bytes() == FILES["offsets/0"]
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(SourceProgressError, match="is not empty"):
        restore_source_progress(FILES, str(tmp_path / "empty"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_each_restored_query_has_its_own_id(tmp_path: Path) -> None:
    for name in ("one", "other"):
        restore_source_progress(FILES, str(tmp_path / name))
    ids = {json.loads((tmp_path / name / "metadata").read_text())["id"] for name in ("one", "other")}
    assert len(ids) == 2
    assert "q" not in ids


def test_a_local_uri_with_a_single_slash_is_a_local_directory(tmp_path: Path) -> None:
    restore_source_progress(FILES, f"file:{tmp_path / 'q'}")
    assert read_offsets(f"file://{tmp_path / 'q'}", 0) == FILES["offsets/0"]


@pytest.mark.parametrize(
    "name", ["../escape", "/etc/x", "offsets/../../x", "state/0/x", "offsets/x", "sources/0/.1.crc", "sources/0"]
)
def test_unexpected_files_are_rejected_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises((SourceProgressError, UnsafePathError)):
        restore_source_progress({**FILES, name: b""}, str(tmp_path / "q"))
    assert list(tmp_path.iterdir()) == []


def test_progress_without_offsets_is_rejected_and_without_an_id_gets_one(tmp_path: Path) -> None:
    with pytest.raises(SourceProgressError, match="lacks"):
        restore_source_progress({"metadata": FILES["metadata"]}, str(tmp_path / "q"))
    restore_source_progress({"offsets/0": FILES["offsets/0"]}, str(tmp_path / "q"))
    assert json.loads((tmp_path / "q" / "metadata").read_text())["id"]


class Query:
    """Run a stream to the end of its input, or up to a batch number. Record what each batch read."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.batches: dict[int, list[int]] = {}

    def run(self, stream: DataFrame, before_commit: Callable[[int], None] = lambda batch: None) -> dict[int, list[int]]:
        def each(frame: DataFrame, batch: int) -> None:
            self.batches[batch] = sorted(row.id for row in frame.collect())
            before_commit(batch)

        self.batches = {}
        query = (
            stream.writeStream.foreachBatch(each)
            .trigger(availableNow=True)
            .option("checkpointLocation", str(self.checkpoint))
            .start()
        )
        query.awaitTermination()
        return self.batches


@contextmanager
def compacting_and_deleting_early(spark: SparkSession) -> Iterator[None]:
    options: dict[str, Any] = {
        "spark.sql.streaming.fileSource.log.compactInterval": 3,
        "spark.sql.streaming.fileSource.log.cleanupDelay": 0,
        "spark.sql.streaming.minBatchesToRetain": 2,
    }
    for key, value in options.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in options:
            spark.conf.unset(key)


@pytest.mark.extended_after(1)
@pytest.mark.spark
@pytest.mark.parametrize("commit_is_there", [True, False])
def test_a_restored_file_stream_continues_with_exactly_the_next_files(
    spark: SparkSession, tmp_path: Path, commit_is_there: bool
) -> None:
    for number in range(4):
        spark.createDataFrame([(number,)], "id bigint").coalesce(1).write.parquet(str(tmp_path / f"part{number}"))
    source = tmp_path / "in"
    source.mkdir()

    def stream() -> DataFrame:
        return spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(str(source))

    def bring(number: int) -> None:
        (part,) = (tmp_path / f"part{number}").glob("*.parquet")
        shutil.copy(part, source / f"{number}.parquet")

    for number in range(3):
        bring(number)
    captured: list[dict[str, bytes]] = []

    def capture_in_batch_1(batch: int) -> None:
        if batch == 1 and not commit_is_there:
            captured.append(capture_source_progress(str(tmp_path / "first"), 1))

    first = Query(tmp_path / "first").run(stream(), capture_in_batch_1)
    assert sorted(first) == [0, 1, 2]
    if commit_is_there:
        captured.append(capture_source_progress(str(tmp_path / "first"), 1))

    restore_source_progress(captured[0], str(tmp_path / "second"))
    bring(3)
    second = Query(tmp_path / "second").run(stream())

    replayed = {} if commit_is_there else {1: first[1]}
    assert second == {**replayed, 2: first[2], 3: [3]}


@pytest.mark.spark
@pytest.mark.extended
def test_a_restored_file_stream_continues_after_spark_has_compacted_and_deleted(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.range(0, 9, 1, 9).write.parquet(str(tmp_path / "in"))
    with compacting_and_deleting_early(spark):

        def stream() -> DataFrame:
            return spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))

        first = Query(tmp_path / "first").run(stream())
        assert sorted(first) == list(range(9))
        left = {path.name for path in (tmp_path / "first" / "sources" / "0").glob("[0-9]*")}
        assert "0" not in left, "Spark has not deleted what this test is about"

        files = capture_source_progress(str(tmp_path / "first"), 7)
        restore_source_progress(files, str(tmp_path / "second"))
        second = Query(tmp_path / "second").run(stream())
    assert second == {8: first[8]}


@pytest.mark.spark
def test_a_restored_rate_stream_continues_with_the_next_row(spark: SparkSession, tmp_path: Path) -> None:
    stream = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 5)
        .option("startTimestamp", 0)
        .option("advanceMillisPerBatch", 1)
        .load()
        .selectExpr("value as id")
    )

    def run(checkpoint: Path, batches: int) -> dict[int, list[int]]:
        seen: dict[int, list[int]] = {}
        are_all_seen, may_go_on = threading.Event(), threading.Event()

        def each(frame: DataFrame, batch: int) -> None:
            if len(seen) < batches:
                seen[batch] = sorted(row.id for row in frame.collect())
            if len(seen) == batches:
                # Spark deletes the log of the first batch after a hundred more batches.
                are_all_seen.set()
                may_go_on.wait()

        query = stream.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint)).start()
        try:
            while query.isActive and not are_all_seen.wait(1):
                pass
        finally:
            may_go_on.set()
            query.stop()
        assert query.exception() is None
        return seen

    first = run(tmp_path / "first", 3)
    restore_source_progress(capture_source_progress(str(tmp_path / "first"), 1), str(tmp_path / "second"))
    second = run(tmp_path / "second", 2)
    assert min(second) == 2
    assert second[2] == first[2]
