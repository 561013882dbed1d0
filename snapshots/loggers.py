"""Loggers that write each record in one line.

Names of jobs, operators and states come from programs and from stored state and are not trusted. Without escaping, a
line end in a name could forge another log record.
"""

from __future__ import annotations

import logging

from snapshots.errors import printable


def logger_of(name: str) -> logging.Logger:
    """Returns the logger of that name; it escapes unprintable characters in messages and arguments."""
    logger = logging.getLogger(name)
    logger.addFilter(_one_line)
    return logger


def _one_line(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(one if isinstance(one, (int, float)) else _Printable(one) for one in record.args)
    if isinstance(record.msg, str):
        record.msg = printable(record.msg)
    return True


class _Printable:
    """An argument of a log record, formatted only if the record is written."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return printable(str(self._value))

    def __repr__(self) -> str:
        return printable(repr(self._value))
