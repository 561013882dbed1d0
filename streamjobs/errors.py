"""The exceptions of jobs: wrong use, and failures of a running job; each says what, where and what to do."""

from __future__ import annotations


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
