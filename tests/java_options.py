"""JVM options for short-lived JVMs, such as those of tests and of jobs that are killed repeatedly.

In a short run, the second compiler, parallel garbage collection and a helper process for each `chmod` cost more than
they save. Loading Spark's classes costs most, so `make` archives them (`scripts/environment/archive_classes.py`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["PREPARED_CLASSES", "SHORT_LIVED", "use_short_lived_java"]

SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK"

_ARCHIVE: Final = Path(__file__).resolve().parents[1] / ".venv" / "spark-classes.jsa"

# A JVM for which the archive is invalid loads its classes as usual and prints nothing.
PREPARED_CLASSES: Final = f'"-XX:SharedArchiveFile={_ARCHIVE}" -Xlog:cds=off -Xlog:cds+dynamic=off'


def use_short_lived_java() -> None:
    """Set the options for Spark programs that this process starts, unless the user has set other options."""
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", SHORT_LIVED)
    options = f"{SHORT_LIVED} {PREPARED_CLASSES}" if _ARCHIVE.exists() else SHORT_LIVED
    os.environ.setdefault("SPARK_SUBMIT_OPTS", options)
