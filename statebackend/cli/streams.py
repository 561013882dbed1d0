"""Exit statuses and standard streams of the command line.

| Status | Meaning |
|---|---|
| 0 | done; `diff`: no difference; `check`: the job restores |
| 1 | `diff`, `lock --check`: a difference; `check`, `migrate`: the job does not restore |
| 2 | `check`, `migrate`: the job restores with data loss |
| 3 | not found, not readable, or the answer could not be written |
| 64 | wrong usage |
| 130 | interrupted |

Scripts act on the status. A reader that stops early (`| head`), a closed output (`>&-`) and an encoding without some
characters do not change it. A full disk does: the reader would take a part of the answer for all of it.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Final, TextIO

DIFFERENT: Final = 1
REJECTED: Final = 1
LOSES: Final = 2
NOT_READABLE: Final = 3
MISUSED: Final = 64
INTERRUPTED: Final = 130


def prepare_standard_streams() -> None:
    """Replace stdout and stderr of this process by lenient streams."""
    sys.stdout = lenient_stream(sys.stdout)
    sys.stderr = lenient_stream(sys.stderr)


def flushed_status(status: int) -> int:
    """Flush stdout and return the status, or `NOT_READABLE` if the answer cannot be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"error: the answer could not be written: {error.strerror or error}", file=sys.stderr)
        return NOT_READABLE
    return status


def lenient_stream(stream: TextIO | None) -> TextIO:
    """Return a stream that escapes characters outside its encoding and ignores a reader that is gone.

    Args:
        stream: None for a stream that was closed before the process started; the result then drops everything. A
            stream that is not a file is returned unchanged.
    """
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_LenientFile(stream.fileno())),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
    )


class _LenientFile(io.FileIO):
    """A file that drops data once its reader is gone or a write failed. It does not own the descriptor."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._has_failed = False

    def write(self, data: object) -> int:
        size_bytes = memoryview(data).nbytes  # type: ignore[arg-type]
        if self._has_failed:
            return size_bytes
        try:
            return super().write(data)  # type: ignore[arg-type]
        except BrokenPipeError:
            return size_bytes
        except OSError:
            # Python would write again at exit and end the process with its own status.
            self._has_failed = True
            raise
