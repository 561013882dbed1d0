"""Runs the job of `timed_inputs` on two executors. Each is a process with its own directory.

    python inputs_on_executors.py WORK_DIRECTORY

It reads the directories of its sources in ``WORK_DIRECTORY``. It writes ``found.json`` there, with the rows of each
output and the executors that ran tasks.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from two_executors import session_on_two_executors

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import timed_inputs

from statebackend.spark import SparkStreamEnvironment
from statebackend.spark.frame_sinks import MemorySink
from typeserializers import LongSerializer


def executor_of(_: Any) -> list[str]:
    """The directory of the executor. Called in a task."""
    return [os.environ["SPARK_LOCAL_DIRS"]]


def main(work_directory: str) -> None:
    cloudpickle.register_pickle_by_value(timed_inputs)  # type: ignore[no-untyped-call]
    work = Path(work_directory)
    spark = session_on_two_executors(work)
    env = SparkStreamEnvironment(
        spark,
        job_dir=work / "job",
        parallelism=4,
        max_parallelism=16,
        # Spark assigns each executor its own directory.
        local_state_directory="$SPARK_LOCAL_DIRS/state",
    )
    reader = spark.readStream.schema(timed_inputs.SCHEMA).option("maxFilesPerTrigger", 1)
    streams = {name: env.from_dataframe(reader.json(str(work / name)), uid=name) for name in timed_inputs.NAMES}
    sinks = {name: MemorySink() for name in ("met", "ruled", "counted")}
    timed_inputs.build(streams, sinks, LongSerializer())
    env.execute("timed inputs", trigger={"availableNow": True}).await_termination()
    ran = spark.sparkContext.parallelize(range(8), 8).mapPartitions(executor_of).collect()
    found: dict[str, Any] = {name: [tuple(row) for row in sink.rows] for name, sink in sinks.items()}
    (work / "found.json").write_text(json.dumps({**found, "executors": sorted(set(ran))}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
