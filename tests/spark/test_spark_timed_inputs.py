"""Several timed inputs on Spark: from and to the local runtime, compared with Spark's windows, and on executors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import timed_inputs
from json_source import add_file, padded
from spark_job_fixture import memory_sink, pickled_by_value, rows_of
from test_spark_processes import GIVE_UP_S
from timed_inputs import NAMES, SCHEMA, build

from statebackend.local import LocalStreamEnvironment
from tests.streaming.runtime import test_rules_of_a_job as text_rules
from typeserializers import LongSerializer, StringSerializer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.extended]

Row = tuple[str, int, int]
PROGRAM = Path(__file__).parent / "programs" / "inputs_on_executors.py"


def epochs(first: int, count: int) -> list[dict[str, list[Row]]]:
    """The records of the three sources in each epoch, with increasing times."""
    return [
        {
            "left": [("abcde"[(place + n) % 5], number * 20 + place * 4, place) for place in range(5)],
            "right": [("abcx"[(place + n) % 4], number * 20 + place * 3 + 1, place + 10) for place in range(6)],
            "rules": [("rs"[n % 2], number * 20 + 3, number), ("rs"[n % 2], number * 20 + 18, -number)],
        }
        for n, number in enumerate(range(first, first + count))
    ]


PARTS = [epochs(0, 2), epochs(2, 2), epochs(4, 1)]


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> Iterator[None]:
    with pickled_by_value(timed_inputs, text_rules):
        yield


def on_local(directory: Path, part: int, serializer: Any, **execute: Any) -> tuple[dict[str, list[Any]], Any]:
    """Run the job in the local runtime over the epochs of a part. Return each output, and the job."""
    given = PARTS[part]
    size = max(len(rows) for epoch in given for rows in epoch.values())
    env = LocalStreamEnvironment(
        job_dir=directory / f"local-{part}",
        parallelism=3,
        max_parallelism=16,
        epoch_size=size,
        rules=text_rules.rules_with_text(),
    )
    streams = {}
    for name in NAMES:
        # All sources need the same number of records in an epoch. A shorter one repeats its last record.
        rows = [row for epoch in given for row in padded(epoch[name], size)]
        streams[name] = env.from_elements(rows, SCHEMA, uid=name)
    sinks: dict[str, list[Any]] = {"met": [], "ruled": [], "counted": []}
    build(streams, sinks, serializer)
    job = env.execute(**execute)
    return {name: sorted(map(tuple, rows)) for name, rows in sinks.items()}, job


def on_spark(
    spark: SparkSession, directory: Path, part: int, serializer: Any, **execute: Any
) -> tuple[dict[str, list[Any]], Any]:
    """Like `on_local`, on Spark."""
    from statebackend.spark import SparkStreamEnvironment

    env = SparkStreamEnvironment(
        spark,
        job_dir=directory / "job",
        local_state_directory=directory / "local-state",
        parallelism=2,
        max_parallelism=16,
        backend="rocksdb",
        rules=text_rules.rules_with_text(),
    )
    size = max(len(rows) for epoch in PARTS[part] for rows in epoch.values())
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    streams = {}
    for name in NAMES:
        write(directory / name, [padded(epoch[name], size) for epoch in PARTS[part]])
        streams[name] = env.from_dataframe(reader.json(str(directory / name)), uid=name)
    sinks = {name: memory_sink() for name in ("met", "ruled", "counted")}
    build(streams, sinks, serializer)
    job = env.execute("timed inputs", trigger={"availableNow": True}, **execute)
    job.await_termination()
    return {name: rows_of(sink) for name, sink in sinks.items()}, job


def write(source: Path, batches: Sequence[Sequence[Row]]) -> None:
    """Write one JSON file per batch."""
    source.mkdir(exist_ok=True)
    for number, rows in enumerate(batches, start=len(list(source.iterdir()))):
        add_file(source, number, ({"k": k, "t": t, "v": v} for k, t, v in rows))


def test_a_job_with_timed_inputs_moves_to_spark_and_back_to_the_local_runtime(
    spark: SparkSession, tmp_path: Path
) -> None:
    number, text = LongSerializer(), StringSerializer()
    expected, paths = [], {}
    for way in ("local", "spark"):
        directory = tmp_path / way
        directory.mkdir()
        started, job = on_local(directory, 0, number)
        paths["first"] = job.savepoint(directory / "first").path
        # From here on, numbers are stored as texts, by migration rules that only this job has.
        execute = {"from_savepoint": paths["first"]}
        middle, job = (
            on_local(directory, 1, text, **execute)
            if way == "local"
            else on_spark(spark, directory, 1, text, restore_source_progress=False, **execute)
        )
        paths["second"] = job.savepoint(directory / "second").path
        ended, _ = on_local(directory, 2, text, from_savepoint=paths["second"], drain=True)
        expected.append((started, middle, ended))
    assert expected[0] == expected[1]
    started, middle, ended = expected[1]
    assert any("behind None" in what for _, what in started["met"])
    assert any(what.startswith("left 0 behind 1") for _, what in middle["met"]), "a text of before"
    assert all(one["counted"] and any(" at " in f" {what}" for _, what in one["ruled"]) for one in expected[1])


def test_inputs_are_joined_on_several_executors(tmp_path: Path) -> None:
    expected: dict[str, list[Any]] = {}
    for part in range(2):
        for name in NAMES:
            size = max(len(rows) for epoch in PARTS[part] for rows in epoch.values())
            write(tmp_path / name, [padded(epoch[name], size) for epoch in PARTS[part]])
    size = max(len(rows) for rows in PARTS[0][0].values())
    env = LocalStreamEnvironment(parallelism=2, max_parallelism=16, epoch_size=size)
    streams = {
        name: env.from_elements(
            [row for part in range(2) for epoch in PARTS[part] for row in padded(epoch[name], size)], SCHEMA, uid=name
        )
        for name in NAMES
    }
    expected = {"met": [], "ruled": [], "counted": []}
    build(streams, expected, LongSerializer())
    env.execute()
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path)], capture_output=True, text=True, check=False, timeout=GIVE_UP_S
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found["executors"]) == 2
    for name, rows in expected.items():
        assert sorted(map(tuple, found[name])) == sorted(map(tuple, rows))
