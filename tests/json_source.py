"""The source of a Spark test: a directory of JSON files, which Spark reads in order of their modification times."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_FIRST_S = 1_000_000_000


def add_file(directory: Path, number: int, rows: Iterable[object]) -> Path:
    """Write a file atomically, with one line per row and a modification time that grows with its number."""
    directory.mkdir(parents=True, exist_ok=True)
    # Spark ignores files whose name starts with an underscore.
    staged, path = directory / f"_{number:05d}.json", directory / f"{number:05d}.json"
    staged.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(staged, (_FIRST_S + number, _FIRST_S + number))
    return staged.rename(path)


def padded(rows: Sequence[Any], size: int) -> list[Any]:
    """The rows of a full epoch of the local runtime: the last row is repeated up to that size."""
    return [*rows, *[rows[-1]] * (size - len(rows))]
