"""A job that runs until the file WORK_DIR/stop-RUN exists, then ends with the savepoint WORK_DIR/savepoint-RUN.

    spark-submit --py-files aircraft.py aircraft_job.py INPUT_DIR WORK_DIR RUN

The first run is number 1. Run 2 starts from the savepoint of run 1, and so on. A run that starts again with its
number continues from its last checkpoint. It reads Parquet files of flights and writes WORK_DIR/rows-RUN.
"""

from __future__ import annotations

import os
import sys

from aircraft import FollowAircraft
from pyspark.sql import SparkSession

from statebackend.spark import ParquetSink, SparkStreamEnvironment

COLUMNS = "tailnum string, dest string, time_hour timestamp, minute int, origin string, carrier string, flight int"
ORDER = ["time_hour", "minute", "origin", "carrier", "flight"]


def main(input_dir: str, work_dir: str, run: int) -> None:
    """Run the job until it is asked to stop."""
    spark = SparkSession.builder.getOrCreate()
    files = spark.readStream.schema(COLUMNS).option("pathGlobFilter", "*.parquet").parquet(input_dir)
    env = SparkStreamEnvironment(spark, job_dir=f"{work_dir}/job-{run}", backend="rocksdb", parallelism=2)
    flights = env.from_dataframe(files).filter(lambda flight: flight.tailnum is not None)
    landings = flights.key_by("tailnum").process(FollowAircraft(), uid="aircraft", order_by=ORDER)
    landings.sink_to(ParquetSink(f"{work_dir}/rows-{run}"))
    savepoint = f"{work_dir}/savepoint-{run - 1}" if run > 1 else None
    job = env.execute("follow-aircraft", from_savepoint=savepoint, trigger={"processingTime": "1 second"})
    while not job.await_termination(timeout_s=1):
        if os.path.exists(f"{work_dir}/stop-{run}"):
            job.stop_with_savepoint(f"{work_dir}/savepoint-{run}")
            return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
