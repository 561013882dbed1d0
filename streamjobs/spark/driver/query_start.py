"""How a streaming query starts: so that Spark notes its batches without starting processes for that.

Spark notes what a batch reads, and that it is done, in a log, of which each job has its own. Unless it is told
otherwise it writes there through Hadoop's ``FileContext``, which without Hadoop's native library asks a process of its
own (``readlink``) about each file of a local disk that it touches: 14 of them for a batch. Hadoop's ``FileSystem`` asks
none. Both write the same files in the same steps: a temporary file and its checksum, which are renamed into place.

What ``FileContext`` has beyond that: it refuses to replace a file in the step in which it would, where ``FileSystem``
looks before. Nobody comes in between, since one driver leads a job, and what it writes in place is its own
(``docs/decisions/0039``).

Spark looks into the session for which of them to use, on the thread of the query, when it first looks into the log. So
the setting holds in the session from the start of the query until then, and no longer. A program that has made a choice
of its own is heard.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from streamjobs.spark.session import configured

__all__ = ["start_query"]

_LOG_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"
_WITHOUT_PROCESSES: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_INITIALIZING: Final = "Initializing"
"""How the status of a query begins that has not looked into its log."""

_POLL_S: Final = 0.01
_PATIENCE_S: Final = 10.0
"""For so long sources may take to be there; beyond that the log is written in Spark's usual way."""


def start_query(
    source: DataFrame,
    name: str,
    log_directory: str,
    run: Callable[[DataFrame, int], None],
    trigger: Mapping[str, Any],
) -> StreamingQuery:
    """Starts the query that reads ``source`` and calls ``run`` with each batch and its id; raises what Spark does.

    ``log_directory`` is an absolute path on a local or mounted disk.
    """
    writer = (
        source.writeStream.queryName(name)
        # Not a plain path, which the default file system of Hadoop may look for elsewhere.
        .option("checkpointLocation", f"file://{log_directory}")
        .foreachBatch(run)
    )
    if trigger:
        writer = writer.trigger(**trigger)
    session = source.sparkSession
    if session.conf.get(_LOG_FILES, None) is not None:
        return writer.start()
    with configured(session, {_LOG_FILES: _WITHOUT_PROCESSES}):
        query = writer.start()
        try:
            _wait_until_initialized(query)
        except BaseException:
            # Nobody is given it to stop.
            query.stop()
            raise
    return query


def _wait_until_initialized(query: StreamingQuery) -> None:
    end_s = time.monotonic() + _PATIENCE_S
    while query.status["message"].startswith(_INITIALIZING) and time.monotonic() < end_s:
        time.sleep(_POLL_S)
