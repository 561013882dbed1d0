"""Places parts of the flights data before a file stream, in time order.

Structured Streaming's file source reads new files in order of modification time, not of name, and ignores hidden
files. A checkout gives all parts nearly the same time, so a stream reads copies: part `i` is copied under a hidden
name, dated `FIRST_MODIFICATION_TIME_S + i` seconds, and renamed. The time depends on the part alone. Therefore later
parts sort after earlier ones, a repeated call changes nothing, and no reader sees an incomplete file.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from examples.data.flights_dataset import PART_COUNT, part_path

#: When the parts pretend to have been written, in seconds since the epoch: the first moment after their year.
FIRST_MODIFICATION_TIME_S = int(datetime(2014, 1, 1, tzinfo=timezone.utc).timestamp())


def stage_flights(target_directory: str | os.PathLike[str], first: int = 0, last: int = PART_COUNT) -> list[Path]:
    """Copy parts `first` up to but not including `last` into `target_directory`; return the paths of the copies.

    Each file appears complete, with a modification time one second after the part before it. A missing directory
    is created. An existing part is not copied again, so a stream does not read it twice. Keep no newer files of other
    origin in the directory: the file source measures its `maxFileAge` from the newest file and would skip the parts.

    Raises `ValueError`, before anything is copied, if the range is not within the `PART_COUNT` parts.
    """
    if not 0 <= first <= last <= PART_COUNT:
        raise ValueError(
            f"cannot stage parts {first} to {last} of the flights data: "
            f"choose 0 <= first <= last <= {PART_COUNT}, where last is not included"
        )
    target = Path(target_directory)
    target.mkdir(parents=True, exist_ok=True)
    return [_stage_part(target, index) for index in range(first, last)]


def place_file(staged: Path, index: int, write: Callable[[Path], object]) -> Path:
    """Write a file under a hidden name, date it as part `index`, and rename it to ``staged``. An existing file is kept.

    ``write`` receives the hidden path.
    """
    if staged.exists():
        return staged
    staged.parent.mkdir(parents=True, exist_ok=True)
    hidden = staged.with_name(f".{staged.name}.{os.getpid()}")
    try:
        write(hidden)
        modification_time_s = FIRST_MODIFICATION_TIME_S + index
        os.utime(hidden, (modification_time_s, modification_time_s))
        os.replace(hidden, staged)
    finally:
        hidden.unlink(missing_ok=True)
    return staged


def _stage_part(target: Path, index: int) -> Path:
    source = part_path(index)
    return place_file(target / source.name, index, lambda hidden: shutil.copyfile(source, hidden))
