"""The directory of a chaos run, and the cleanup of its processes, mounted disks and files.

A run cleans up when it ends, also at SIGTERM, but keeps its files after a failure. If a run was killed, the next run
cleans up for it. It finds the directory by its name, and reads from the file `owner` whether the run's process still
lives. It finds the processes by an environment variable with the directory, so that no other process is killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

from verification.chaos.processes import start_of, started_with

__all__ = ["RUN_VARIABLE", "remove_leftover_runs", "run_directory"]

RUN_VARIABLE: Final = "CHAOS_RUN"
"""Environment variable of every process that a run starts; its value is the directory of the run."""

_OWNER: Final = "owner"
_PREFIX: Final = "chaos-"


@contextlib.contextmanager
def run_directory(kept_behind: type[Exception]) -> Iterator[Path]:
    """Yield a new directory, and remove it at the end; it is kept if the block raises ``kept_behind``.

    Inside the block, temporary files are created in the directory, and SIGTERM raises `SystemExit`, so that everything
    open is closed.
    """
    remove_leftover_runs(Path(tempfile.gettempdir()))
    root = Path(tempfile.mkdtemp(prefix=_PREFIX))
    (root / _OWNER).write_text(f"{os.getpid()} {start_of(os.getpid())}")
    os.environ[RUN_VARIABLE] = str(root)
    former, place = signal.signal(signal.SIGTERM, _end), tempfile.tempdir
    tempfile.tempdir = str(root)
    try:
        yield root
    except kept_behind:
        (root / _OWNER).unlink()
        raise
    except BaseException:
        _clear_away(root)
        raise
    else:
        _clear_away(root)
    finally:
        signal.signal(signal.SIGTERM, former)
        tempfile.tempdir = place
        del os.environ[RUN_VARIABLE]


def remove_leftover_runs(place: Path) -> list[Path]:
    """Clean up after killed runs below ``place``, and return their directories."""
    left = [one.parent for one in place.glob(f"{_PREFIX}*/{_OWNER}") if not _lives(one)]
    for root in left:
        _clear_away(root)
    return left


def _lives(owner: Path) -> bool:
    try:
        pid, start = owner.read_text().split()
    except (OSError, ValueError):
        # Another user's file, or a file that is being written.
        return True
    return str(start_of(int(pid))) == start


def _clear_away(root: Path) -> None:
    for pid in started_with(RUN_VARIABLE, str(root)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    for place in [line.split(" ")[1] for line in mounts if line.split(" ")[1].startswith(f"{root}/")]:
        subprocess.run(["umount", "--lazy", place], check=False)
    shutil.rmtree(root, ignore_errors=True)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
