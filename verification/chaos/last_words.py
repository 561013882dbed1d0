"""What the processes of a job that makes no progress have said last, and where they stand.

The driver says where its threads are (`faulthandler`, at SIGUSR1), a JVM at SIGQUIT; both go on. What is long stays in
files, which are named.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Final

import pyspark

from verification.chaos.processes import descendants, look

__all__ = ["keep_executor_logs", "last_words"]

_WORK: Final = Path(pyspark.__file__).parent / "work"
"""Where Spark has the directories of executors of a cluster on this machine, by the id of their application."""

_LINES: Final = 15
ANSWER_S: Final = 5.0
"""So long has a process time to say where it stands; what is stopped does not."""


def last_words(driver: int, log: Path, application: str) -> dict[str, str]:
    """By who has said it: the driver of that process id with its log, and the executors of Spark's application."""
    processes = [seen for seen in map(look, (driver, *descendants(driver))) if seen is not None]
    for one in processes:
        _signal(one.pid, signal.SIGQUIT if one.name == "java" else signal.SIGUSR1 if one.pid == driver else None)
    time.sleep(ANSWER_S)
    words = {"processes": "\n".join(map(str, processes)) or "none"}
    spark = log.with_name(log.name.replace("driver", "spark"))
    for place in (log, log.with_suffix(".out"), spark, *_executor_logs(application)):
        if place.exists():
            lines = place.read_text(errors="replace").splitlines()
            words[str(place)] = "\n".join(lines[-_LINES:])
    return words


def keep_executor_logs(application: str, target: Path) -> None:
    """Moves what the executors of an application have said, which Spark keeps beside its own files for ever."""
    place = _WORK / application
    if application and place.is_dir():
        shutil.copytree(place, target, dirs_exist_ok=True)
        shutil.rmtree(place, ignore_errors=True)


def _executor_logs(application: str) -> list[Path]:
    return sorted((_WORK / application).glob("*/stderr")) if application else []


def _signal(pid: int, number: signal.Signals | None) -> None:
    if number is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
