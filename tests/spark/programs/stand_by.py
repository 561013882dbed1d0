"""One of several drivers of a word count. It waits for leadership, and runs until the source is read.

    python stand_by.py WORK_DIRECTORY HOSTS SESSION_TIMEOUT_S

The job is that of `count_words`, in ``WORK_DIRECTORY/job-rocksdb``. If the leadership is lost, the program prints one
line and exits with status 3.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from count_words import announce_checkpoints, session, start

from statebackend.checkpoint import LeadershipLostError, ZooKeeperHighAvailability


def main(work_directory: str, hosts: str, session_timeout_s: str) -> int:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    announce_checkpoints()
    work = Path(work_directory)
    spark = session(work)
    try:
        services = ZooKeeperHighAvailability(hosts, "/words", session_timeout_s=float(session_timeout_s))
        start(spark, work, "rocksdb", "rocksdb", 2, high_availability=services).await_termination()
    except LeadershipLostError as error:
        print(f"lost: {error}", file=sys.stderr)  # noqa: T201
        return 3
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
