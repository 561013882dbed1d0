"""The standard streams of the command, so that nobody who reads them decides how a command ends.

A status says what was found, and scripts act on it: that a reader has enough (`| head`), that there is no output at all
(`>&-`) or that the locale has not all characters is no finding. That the answer could not be written, to a disk that is
full, is one: whoever reads it later would take what is there for all.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

from savepoints.command_line.exit_statuses import NOT_READABLE

__all__ = ["lenient_stream", "prepare_standard_streams", "status_once_written"]


def prepare_standard_streams() -> None:
    """Puts lenient streams in the place of the output and the error output of this process."""
    sys.stdout = lenient_stream(sys.stdout)
    sys.stderr = lenient_stream(sys.stderr)


def status_once_written(status: int) -> int:
    """The status of a command when all that it has printed is out, or that of one whose answer could not be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"error: the answer could not be written: {error.strerror or error}", file=sys.stderr)
        return NOT_READABLE
    return status


def lenient_stream(stream: TextIO | None) -> TextIO:
    """The stream, which shows what its encoding has not by an escape, and drops what nobody reads any more.

    None, which is a stream that was closed before the process began, becomes one that drops everything. A stream that
    is no file is given back as it is.
    """
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_WhileItIsRead(stream.fileno())),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
    )


class _WhileItIsRead(io.FileIO):
    """A file of this process that it does not own. It takes everything once its reader is gone, or it has failed."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._has_failed = False

    def write(self, data: object) -> int:
        """As of every file; a pipe without a reader drops the data, and so does what has raised that it cannot."""
        size_bytes = memoryview(data).nbytes  # type: ignore[arg-type]
        if self._has_failed:
            return size_bytes
        try:
            return super().write(data)  # type: ignore[arg-type]
        except BrokenPipeError:
            return size_bytes
        except OSError:
            # Python would try once more when the process ends, and end it with a status of its own.
            self._has_failed = True
            raise
