"""Places parts of the flights data before a file stream, in time order.

Structured Streaming's file source takes new files in order of modification time, not of name, and ignores
files whose names begin with a dot.  A checkout gives all parts nearly the same time, so a stream reads copies
instead: part `i` is copied under a hidden name, dated `FIRST_MODIFICATION_TIME_S + i` seconds, and renamed
into place.  The time depends on the part alone.  Therefore parts staged later sort behind those staged
earlier, a repeated call changes nothing, and no reader ever sees half a file.
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
    """Copy parts `first` up to but not including `last` into `target_directory`; return the copies' paths.

    Each file appears complete and with a modification time one second after the part before it.  The
    directory is made when missing; a part that is already there is left alone, so a stream that has read it
    is not shown it again.  Files of other origin and later date should not lie in the same directory: the
    file source measures its `maxFileAge` from the newest file and would pass over the parts.

    Raises `ValueError` when the range is not within the `PART_COUNT` parts, before anything is copied.
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
    """Lets ``staged`` appear complete, dated as part `index`; a file that is already there is left alone.

    ``write`` is given the hidden path to write the file to.
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
