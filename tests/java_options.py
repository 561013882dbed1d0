"""JVM options for short-lived JVMs: those of the tests, and of jobs that are killed repeatedly.

Compiling hot code twice, collecting garbage on all cores, and a helper process to start each `chmod` cost more than
they bring. Loading Spark's classes costs most; `make` prepares them (`scripts/environment/archive_classes.py`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["PREPARED_CLASSES", "SHORT_LIVED", "use_short_lived_java"]

SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK"

_ARCHIVE: Final = Path(__file__).resolve().parents[1] / ".venv" / "spark-classes.jsa"

# Classes that do not fit are loaded as usual, without a word.
PREPARED_CLASSES: Final = f'"-XX:SharedArchiveFile={_ARCHIVE}" -Xlog:cds=off -Xlog:cds+dynamic=off'


def use_short_lived_java() -> None:
    """Set the options for Spark programs that this process starts, unless the user has set others."""
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", SHORT_LIVED)
    options = f"{SHORT_LIVED} {PREPARED_CLASSES}" if _ARCHIVE.exists() else SHORT_LIVED
    os.environ.setdefault("SPARK_SUBMIT_OPTS", options)
