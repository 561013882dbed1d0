"""What is told of an exception of the user's: in one line, since Spark reports a failure as text and people search it.

Spark shows the message of the exception that ends a task, and loses what it was raised from. So the message says
all: type, text, notes and place. Lines of a text are joined, or the last one that looks like an exception would be
taken for the cause.

The exceptions of jobs: wrong use, and failures of a running job; each says what, where and what to do.
"""

from __future__ import annotations

import os
import traceback
from typing import Any, Final

import statebackend
from snapshots.errors import cut

__all__ = ["format_value", "one_line", "shown_instance", "told"]


class StreamJobError(Exception):
    """The root of the errors about jobs."""


class JobDefinitionError(StreamJobError, ValueError):
    """The program describes no job that could run: a uid is missing or doubled, there is no sink, a type is unknown."""


class JobRestoreError(StreamJobError):
    """The job does not fit the state that it is to continue from."""


class EpochError(StreamJobError):
    """An epoch failed; it is replayed from the last completed checkpoint when the job is started again."""


class EpochTimeoutError(EpochError, TimeoutError):
    """An epoch did not end in time and was given up; it is processed again when the job is started again."""


class SourceProgressMismatchError(EpochError):
    """The state log and Spark's source log do not belong together."""


class UserFunctionError(StreamJobError):
    """A user's function raised an exception; the message names operator, key and record."""


class AsyncTimeoutError(UserFunctionError, TimeoutError):
    """An async function had no results in time; the message names operator, key and record."""


class NullKeyError(StreamJobError, ValueError):
    """A record has no key."""


class MissingTimestampError(StreamJobError, ValueError):
    """A record without a timestamp came to an operator of event time; the message names operator, key and record."""


class MissingModuleError(StreamJobError):
    """A worker lacks a module of the program; the message names it and says how to send it along."""


_STATES: Final = os.path.join(os.path.dirname(statebackend.__file__), "")


def told(error: BaseException) -> str:
    """``Type: text, notes (file, line, function)``, the place being that in the user's code."""
    notes = "".join(f", {one_line(str(note))}" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {one_line(_text(error))}{notes}{_place_of(error)}"


def one_line(text: str) -> str:
    """The lines of a text, joined by bars; empty ones are left out."""
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())


def shown_instance(given: object) -> str:
    """What was given in the place of an instance of some class: of a class, that it wants an instance."""
    return f"the class {given.__name__}; make an instance" if isinstance(given, type) else format_value(given, 80)


def format_value(value: Any, characters: int) -> str:
    """The value as text of one line; what is longer is cut, and says so."""
    try:
        text = one_line(repr(value))
    except Exception as error:
        return f"a {type(value).__name__} (which cannot be shown: {type(error).__name__})"
    return cut(text, characters)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:
        return f"(its text cannot be shown: {type(failure).__name__})"


def _place_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[1:]
    if not frames:
        return ""
    # A function in C, such as max, that a state folds with has no frame: the place is where the state was used.
    innermost = next((frame for frame in reversed(frames) if not frame.filename.startswith(_STATES)), frames[-1])
    return f" ({os.path.basename(innermost.filename)}, line {innermost.lineno}, in {innermost.name})"
