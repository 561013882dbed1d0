"""Writes the golden files of a job on Spark, like `write_them` for the other jobs:

    scripts/environment/run.sh python -m tests.golden.durable.write_them_on_spark v1 spark-savepoint spark-job

It adds the named directories to the folder of a version, and rejects existing ones. All its imports exist in older
commits too. So an older commit can run it with its own packages first in PYTHONPATH.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "golden_durable"))

from golden_durable_spark import BATCHES, add_file, mounted, pickled_by_value, start  # noqa: E402


def main(version: str, *names: str) -> None:
    """Run the job over its batches, and keep the named results: the savepoint, the job directory or both."""
    folder = HERE / version
    folder.mkdir(exist_ok=True)
    made = {"spark-savepoint": "savepoint", "spark-job": "job"}
    with tempfile.TemporaryDirectory() as directory:
        _run(Path(directory).resolve())
        for name in names:
            shutil.copytree(Path(directory) / made[name], folder / name, ignore=shutil.ignore_patterns("driver.lock"))
            _add_checksums(folder / name)


def _run(directory: Path) -> None:
    from pyspark.sql import SparkSession

    from statebackend.spark.frame_sinks import MemorySink

    for index, rows in enumerate(BATCHES):
        add_file(directory / "source", index, rows)
    builder: Any = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    try:
        for key, value in mounted(directory / "source").items():
            spark.conf.set(key, value)
        with pickled_by_value():
            job = start(spark, directory, MemorySink())
            job.await_termination()
            job.savepoint(directory / "savepoint")
    finally:
        spark.stop()


def _add_checksums(directory: Path) -> None:
    with (HERE / "SHA256SUMS").open("a") as sums:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                sums.write(f"{digest}  {path.relative_to(HERE).as_posix()}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
