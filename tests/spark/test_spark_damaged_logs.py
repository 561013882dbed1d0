"""If Spark's log of a job is damaged, the error at the start names the file and the repair, which loses nothing."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_job_fixture import WordCount, memory_sink, pickled_by_value, rows_of

from statebackend.checkpoint import CheckpointError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NEWEST = 2


@pytest.fixture(scope="module")
def _by_value() -> Iterator[None]:
    with pickled_by_value(sys.modules[__name__]):
        yield


@pytest.fixture
def word_count(spark: SparkSession, tmp_path: Path, _by_value: None) -> WordCount:
    place = WordCount(spark, tmp_path)
    for rows in ([("a", 1), ("b", 2), ("a", 3)], [("c", 5), ("a", 7)], [("b", 11)]):
        place.add_batch(rows)
    return place


def shown(word_count: WordCount) -> list[Any]:
    rows = word_count.spark.read.parquet(str(word_count.directory / "out")).collect()
    return sorted((row.word, row.times, row.total) for row in rows)


def emptied(content: bytes) -> bytes:
    return b""


def cut_off(content: bytes) -> bytes:
    return content[: content.index(b"\n") + 8]


def without_its_end(content: bytes) -> bytes:
    return content[:-2]


def without_its_id(content: bytes) -> bytes:
    return content.replace(b'"id"', b'"ie"')


def without_lines(content: bytes) -> bytes:
    return content[: content.index(b"\n") + 1]


def of_another_batch(content: bytes) -> bytes:
    return content.replace(b'"batchId":2', b'"batchId":1')


@pytest.mark.extended_after(1)
@pytest.mark.parametrize(
    ("name", "damage", "repair"),
    [
        (f"offsets/{NEWEST}", emptied, NEWEST - 1),
        (f"commits/{NEWEST}", cut_off, NEWEST),
        (f"sources/0/{NEWEST}", without_lines, NEWEST - 1),
        (f"offsets/{NEWEST}", without_its_end, NEWEST - 1),
        (f"offsets/{NEWEST - 1}", cut_off, NEWEST - 2),
        (f"commits/{NEWEST}", emptied, NEWEST),
        (f"sources/0/{NEWEST}", cut_off, NEWEST - 1),
        (f"sources/0/{NEWEST}", of_another_batch, NEWEST - 1),
        (f"sources/0/{NEWEST - 1}", without_lines, NEWEST - 2),
        ("metadata", without_its_end, NEWEST),
        ("metadata", without_its_id, NEWEST),
    ],
)
def test_a_damaged_file_of_the_log_is_named_with_the_checkpoint_to_roll_back_to(
    word_count: WordCount, name: str, damage: Callable[[bytes], bytes], repair: int
) -> None:
    from statebackend.spark import ParquetSink

    output = ParquetSink(word_count.directory / "out")
    word_count.run(output)
    expected = word_count.expected()
    file = word_count.directory / "job" / "spark" / name
    file.write_bytes(damage(file.read_bytes()))
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    before = {path: path.read_bytes() for path in (word_count.directory / "job").rglob("*") if path.is_file()}

    named = rf"{re.escape(str(file))} is damaged: .*start with roll_back_to={repair}:"
    with pytest.raises(CheckpointError, match=named):
        word_count.run(output)
    assert before == {path: path.read_bytes() for path in before}

    job = word_count.run(output, execute={"roll_back_to": repair})
    assert job.roll_back_report is not None
    assert job.roll_back_report.abandoned == tuple(range(repair + 1, NEWEST + 1))
    assert shown(word_count) == expected
    word_count.add_batch([("a", 20), ("d", 4)])
    word_count.run(output)
    assert shown(word_count) == word_count.expected()


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("name", [f"offsets/{NEWEST}", f"commits/{NEWEST}", f"sources/0/{NEWEST}"])
def test_rolling_back_to_the_previous_checkpoint_repairs_the_log(word_count: WordCount, name: str) -> None:
    from statebackend.spark import ParquetSink

    output = ParquetSink(word_count.directory / "out")
    word_count.run(output)
    file = word_count.directory / "job" / "spark" / name
    file.write_bytes(b"")
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    report = word_count.run(output, execute={"roll_back_to": "previous"}).roll_back_report
    assert report is not None
    assert report.checkpoint_id == NEWEST - 1
    if name.startswith("offsets"):
        assert f"offsets/{NEWEST} of Spark's log is damaged: it is empty" in report.offsets_before
    assert shown(word_count) == word_count.expected()


def test_a_checkpoint_that_the_log_does_not_reach_is_rejected_with_one_that_it_reaches(word_count: WordCount) -> None:
    from statebackend.spark import ParquetSink

    output = ParquetSink(word_count.directory / "out")
    word_count.run(output)
    file = word_count.directory / "job" / "spark" / f"offsets/{NEWEST - 1}"
    file.write_bytes(b"")
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    named = rf"cannot roll back to checkpoint {NEWEST - 1}, .*{re.escape(str(file))} is damaged: .*roll_back_to=0:"
    for target in ("previous", NEWEST - 1):
        with pytest.raises(CheckpointError, match=named):
            word_count.run(output, execute={"roll_back_to": target})
    word_count.run(output, execute={"roll_back_to": 0})
    assert shown(word_count) == word_count.expected()


@pytest.mark.parametrize(
    ("name", "repair"),
    [(f"offsets/{NEWEST - 1}", NEWEST - 2), (f"sources/0/{NEWEST}", NEWEST - 1), ("metadata", NEWEST)],
)
@pytest.mark.extended
def test_a_missing_file_of_the_log_is_named_with_the_checkpoint_to_roll_back_to(
    word_count: WordCount, name: str, repair: int
) -> None:
    from statebackend.spark import ParquetSink

    output = ParquetSink(word_count.directory / "out")
    word_count.run(output)
    file = word_count.directory / "job" / "spark" / name
    file.unlink()
    with pytest.raises(
        CheckpointError, match=rf"{re.escape(str(file))} is missing: .*start with roll_back_to={repair}:"
    ):
        word_count.run(output)
    word_count.run(output, execute={"roll_back_to": repair})
    assert shown(word_count) == word_count.expected()


def test_a_batch_that_was_only_planned_is_abandoned_without_an_epoch(word_count: WordCount) -> None:
    from statebackend.spark import ParquetSink

    output = ParquetSink(word_count.directory / "out")
    word_count.run(output)
    offsets = word_count.directory / "job" / "spark" / "offsets"
    (offsets / str(NEWEST + 1)).write_bytes(b"")
    word_count.add_batch([("a", 20)])
    with pytest.raises(CheckpointError, match=rf"offsets/{NEWEST + 1} is damaged: .*roll_back_to={NEWEST}:"):
        word_count.run(output)
    word_count.run(output, execute={"roll_back_to": NEWEST})
    assert shown(word_count) == word_count.expected()


def test_a_driver_that_ended_while_spark_wrote_the_first_batch_can_be_started_again(word_count: WordCount) -> None:
    output = memory_sink()
    rows = [path.rename(path.with_name(f"_{path.name}")) for path in sorted(word_count.source.iterdir())]
    word_count.run(output)
    (word_count.directory / "job" / "spark" / "offsets" / ".0.b7.tmp").write_bytes(b"")
    for path in rows:
        path.rename(path.with_name(path.name[1:]))
    word_count.run(output)
    assert rows_of(output) == word_count.expected()
