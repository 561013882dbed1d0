"""Diagnostics of a job that makes no progress: stack dumps, the states of its processes, and the ends of its logs.

SIGUSR1 makes the driver dump its threads (`faulthandler`), and SIGQUIT does so in a JVM; both continue. The diagnostics
contain the last lines of each file and its path.
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

from verification.chaos.processes import descendants, process_stat

__all__ = ["hang_diagnostics", "keep_executor_logs"]

_WORK: Final = Path(pyspark.__file__).parent / "work"
"""The directory where Spark keeps executors of local clusters, in a subdirectory per application id."""

_LINES: Final = 15
ANSWER_S: Final = 5.0
"""Seconds to wait for stack dumps. A stopped process never answers."""


def hang_diagnostics(driver: int, log: Path, application: str) -> dict[str, str]:
    """Return diagnostics by source: the processes below the pid `driver`, its logs, and the logs of the executors."""
    processes = [stat for stat in map(process_stat, (driver, *descendants(driver))) if stat is not None]
    for one in processes:
        _signal(one.pid, signal.SIGQUIT if one.name == "java" else signal.SIGUSR1 if one.pid == driver else None)
    time.sleep(ANSWER_S)
    diagnostics = {"processes": "\n".join(map(str, processes)) or "none"}
    spark = log.with_name(log.name.replace("driver", "spark"))
    for path in (log, log.with_suffix(".out"), spark, *_executor_logs(application)):
        if path.exists():
            lines = path.read_text(errors="replace").splitlines()
            diagnostics[str(path)] = "\n".join(lines[-_LINES:])
    return diagnostics


def keep_executor_logs(application: str, target: Path) -> None:
    """Move the logs of an application's executors to `target`, because Spark never removes them from its directory."""
    path = _WORK / application
    if application and path.is_dir():
        shutil.copytree(path, target, dirs_exist_ok=True)
        shutil.rmtree(path, ignore_errors=True)


def _executor_logs(application: str) -> list[Path]:
    return sorted((_WORK / application).glob("*/stderr")) if application else []


def _signal(pid: int, number: signal.Signals | None) -> None:
    if number is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
