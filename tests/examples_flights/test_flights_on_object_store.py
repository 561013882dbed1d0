"""The flights job with job directory, output and savepoint on an S3-compatible store, continued after a kill.

All tasks of an epoch have written, and its checkpoint is not stored yet. Then Python and JVM of the driver are killed
at once. Another driver continues. All rows and all state must equal those of a batch query.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from object_store import SECRET_KEY, Bucket, FaultyProxy

from examples.data.staging import stage_flights
from examples.demonstration.comparison import require_equal_rows, require_equal_states, written_rows
from examples.demonstration.driver_process import DriverProcess
from examples.flights.expected import IDENTITY, expected_rows, expected_states, running_totals
from examples.flights.flights_source import flights_table
from examples.flights.savepoint_contents import state_contents
from examples.flights.version_2 import UID
from statebackend.checkpoint import CheckpointFileSystem
from statebackend.checkpoint.store.driver_lease import LEASE_FILE_NAME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS = 4
KILLED_AFTER = 1


class Drivers:
    """Driver processes of one job, and their output."""

    def __init__(self, directory: Path, bucket: Bucket, port: int) -> None:
        self.incoming, self.logs = directory / "incoming", directory / "logs"
        self.job, self.rows = bucket.uri("job", port=port), bucket.uri("rows", port=port)
        self.savepoint = bucket.uri("savepoint", port=port)
        self.spark_log = directory / "spark-log"
        self.lines: list[str] = []
        self._directory = directory

    def start(self, name: str) -> DriverProcess:
        log = self.logs / f"{name}.log"
        arguments = [
            *("--version", "2"),
            *("--input", str(self.incoming)),
            *("--job-dir", self.job),
            *("--rows", self.rows),
            *("--savepoint", self.savepoint),
            *("--spark-log-dir", str(self.spark_log)),
            *("--log", str(log)),
        ]
        return DriverProcess(
            "examples.flights.driver", arguments, self.lines.append, job_dir=self._directory / "none", log=log
        )


@pytest.mark.spark
@pytest.mark.extended
def test_a_job_killed_on_the_store_has_all_rows_and_state_of_a_batch_query(
    spark: SparkSession, bucket: Bucket, faulty_store: FaultyProxy, tmp_path: Path
) -> None:
    drivers = Drivers(tmp_path, bucket, faulty_store.port)
    stage_flights(drivers.incoming, 0, PARTS)
    killed = drivers.start("killed")
    try:
        killed_in = killed.kill_in_epoch_after(KILLED_AFTER)
    finally:
        killed.kill()
    assert killed_in == KILLED_AFTER + 1
    second = drivers.start("second")
    try:
        second.wait()
    finally:
        second.kill()

    # The next driver continues right after the epochs that the killed driver completed.
    assert f"continuing after epoch {KILLED_AFTER}" in drivers.lines
    rows = CheckpointFileSystem.from_uri(drivers.rows)
    for path in rows.list_files():
        local = tmp_path / "rows" / path
        local.parent.mkdir(parents=True, exist_ok=True)
        local.write_bytes(rows.read_file(path))
    flights = flights_table(spark, drivers.incoming, 0)
    totals = running_totals(flights)
    _, expected = expected_rows(totals)
    require_equal_rows("the rows", expected, written_rows(tmp_path / "rows", expected.schema), IDENTITY)
    states = expected_states(flights, totals)
    contents = {state: state_contents(drivers.savepoint, UID, state) for state in states}
    require_equal_states("the savepoint", states, contents)
    assert min(map(len, contents.values())) > 1000

    # Nothing is left of the killed driver's last epoch, and no file or output contains a secret.
    job = CheckpointFileSystem.from_uri(drivers.job)
    assert not [key for key in bucket.keys if key.startswith("rows/_staging/") and not key.endswith("/")]
    assert len([path for path in job.list_files("checkpoints") if path.endswith("_metadata")]) == 3
    assert job.exists(LEASE_FILE_NAME)
    written = [bucket.read(key) for key in bucket.keys]
    written += [
        path.read_bytes() for path in [*drivers.logs.rglob("*"), *drivers.spark_log.rglob("*")] if path.is_file()
    ]
    assert not [content for content in written if SECRET_KEY.encode() in content]
