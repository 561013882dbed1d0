"""Open files of this process. Other threads may open and close files at any time."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

DESCRIPTORS = "/proc/self/fd"


def descriptors_below(directory: Path) -> dict[int, str]:
    """The descriptors of files at or below the directory, with their paths."""
    found = {}
    for name in os.listdir(DESCRIPTORS):
        # The file may have been closed since the listing.
        with contextlib.suppress(FileNotFoundError):
            found[int(name)] = os.readlink(f"{DESCRIPTORS}/{name}")
    return {number: path for number, path in found.items() if Path(path).is_relative_to(directory)}
