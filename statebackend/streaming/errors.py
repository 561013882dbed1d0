"""Errors of jobs, and the text that reports an exception of user code.

Spark shows only the message of the exception that ends a task and drops its cause. `describe_exception`
therefore puts type, text, notes and place of the cause into one line.
"""

from __future__ import annotations

import os
import traceback
from typing import Final

import statebackend
from snapshots.errors import StateFormatError, format_value, one_line, printable
from statebackend.checkpoint.errors import CheckpointError
from statebackend.state.errors import StateBackendError
from statebackend.state.key_groups import KeyHashError
from typeserializers.kernel.code_generation import GENERATED_FILES


class StreamJobError(Exception):
    """The base class of errors about jobs."""


class JobDefinitionError(StreamJobError, ValueError):
    """The program does not describe a job that can run: for example a missing uid, no sink or an unknown type."""


class JobRestoreError(StreamJobError):
    """The state of the checkpoint or savepoint does not fit the job."""


class EpochError(StreamJobError):
    """An epoch failed. The next start of the job replays it from the last completed checkpoint."""


class EpochTimeoutError(EpochError, TimeoutError):
    """An epoch did not end in time and was cancelled. The next start of the job processes it again."""


class SourceProgressMismatchError(EpochError):
    """The state log and Spark's offset log belong to different runs."""


class UserFunctionError(StreamJobError):
    """A user function raised an exception. The message names operator, key and record."""


class AsyncTimeoutError(UserFunctionError, TimeoutError):
    """An async function returned no results in time. The message names operator, key and record."""


class AggregateOverflowError(StreamJobError, ArithmeticError):
    """The result of a built-in aggregate does not fit its type."""


class NullKeyError(StreamJobError, ValueError):
    """The key of a record is null."""


class MissingTimestampError(StreamJobError, ValueError):
    """An event-time operator received a record without a timestamp. The message names operator, key and record."""


class MissingModuleError(StreamJobError):
    """A worker cannot import a module of the program. The message names it and says how to ship it."""


EXPECTED_ERRORS: Final = (CheckpointError, StateBackendError, StateFormatError, KeyHashError, StreamJobError, OSError)
"""The errors whose messages say what to do."""


def expected_message(error: Exception) -> str | None:
    """Return the text of one of `EXPECTED_ERRORS`. None for a defect of this program."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{printable(str(error.filename))}: {error.strerror}"
    return str(error) if isinstance(error, EXPECTED_ERRORS) else None


_STATES: Final = os.path.join(os.path.dirname(statebackend.__file__), "")


def describe_exception(error: BaseException) -> str:
    """Return ``Type: text, notes (file, line, function)`` with the innermost place in user code."""
    notes = "".join(f", {one_line(str(note))}" for note in getattr(error, "__notes__", ()))
    text = one_line(_text(error))
    return f"{type(error).__name__}{text and ': '}{text}{notes}{_place_of(error)}"


def format_instance(given: object) -> str:
    """Format an argument that should be an instance of a class. A class gets a hint to make an instance."""
    return f"the class {given.__name__}; make an instance" if isinstance(given, type) else format_value(given, 80)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:
        return f"(its text cannot be shown: {type(failure).__name__})"


def _place_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[1:]
    if not frames:
        return ""
    # A C function, such as max in a reducing state, has no frame. Report where the state was used.
    not_user_code = (_STATES, GENERATED_FILES, "<attrs generated")
    innermost = next((frame for frame in reversed(frames) if not frame.filename.startswith(not_user_code)), frames[-1])
    return f" ({os.path.basename(innermost.filename)}, line {innermost.lineno}, in {innermost.name})"
