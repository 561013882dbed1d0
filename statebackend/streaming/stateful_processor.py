"""Spark's stateful processors as functions of a graph: what is to be run, and the values that a processor is given.

A processor is any object with the methods of PySpark's ``StatefulProcessor`` in its form with rows. It is told by what
it has, so that nothing here needs Spark; names of methods are Spark's, since the programs that call them are.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, Final, Protocol

from attrs import frozen

from statebackend.streaming.errors import JobDefinitionError, format_value

__all__ = [
    "ExpiredTimerInfo",
    "InitialState",
    "StatefulProcessorFunction",
    "TimeMode",
    "TimerValues",
    "checked_output_mode",
    "checked_processor",
]


class TimeMode(Enum):
    """Which time the timers of a processor are in; the values are Spark's names."""

    NONE = "none"
    PROCESSING_TIME = "processingTime"
    EVENT_TIME = "eventTime"

    @classmethod
    def named(cls, name: object, where: str) -> TimeMode:
        """The mode of that name, in any case as in Spark; raises `JobDefinitionError`."""
        for mode in cls:
            if isinstance(name, str) and name.lower() == mode.value.lower():
                return mode
        known = ", ".join(repr(mode.value) for mode in cls)
        raise JobDefinitionError(f"{where}: time_mode is {format_value(name, 80)}, and may be {known}")


_OUTPUT_MODES: Final = ("append", "update")


def checked_output_mode(name: object, where: str) -> str:
    """The name of an output mode, in lower case; raises `JobDefinitionError` for one that a processor cannot have."""
    if isinstance(name, str) and name.lower() in _OUTPUT_MODES:
        return name.lower()
    advice = (
        "; every row that a processor has emitted is written, so choose 'update' and let the sink replace rows by key"
        if isinstance(name, str) and name.lower() == "complete"
        else ""
    )
    raise JobDefinitionError(
        f"{where}: output_mode is {format_value(name, 80)}, and may be 'append' or 'update'{advice}"
    )


class TimerValues:
    """The time of the epoch, as a processor is given it; -1 in the time mode "none"."""

    __slots__ = ("_processing_time_ms", "_watermark_ms")

    def __init__(self, processing_time_ms: int = -1, watermark_ms: int = -1) -> None:
        self._processing_time_ms = processing_time_ms
        self._watermark_ms = watermark_ms

    def getCurrentProcessingTimeInMs(self) -> int:  # noqa: N802
        """The processing time of the epoch, in milliseconds since 1970."""
        return self._processing_time_ms

    def getCurrentWatermarkInMs(self) -> int:  # noqa: N802
        """The watermark of the epoch, in milliseconds since 1970; 0 while there is none."""
        return self._watermark_ms


class ExpiredTimerInfo:
    """Which timer has expired."""

    __slots__ = ("_expiry_time_ms",)

    def __init__(self, expiry_time_ms: int = -1) -> None:
        self._expiry_time_ms = expiry_time_ms

    def getExpiryTimeInMs(self) -> int:  # noqa: N802
        """The time for which the timer was registered, in milliseconds since 1970."""
        return self._expiry_time_ms


_METHODS: Final = ("init", "handleInputRows", "handleExpiredTimer", "close")


class InitialState(Protocol):
    """Rows that are given to ``handleInitialState`` once, before the first records of a new operator."""

    def batches(self, subtask_index: int, parallelism: int) -> Iterable[Any]:
        """The rows of the key groups of one subtask, as batches of records with their keys and key groups."""


@frozen(eq=False)
class StatefulProcessorFunction:
    """What an operator runs: a processor and how it was asked for. Goes to the workers as the function of its node.

    The records of a key must come one after another within an epoch, which sorting by the key's columns does.
    """

    processor: Any
    time_mode: TimeMode
    output_schema: Any
    """That of what the processor emits: DDL, or Spark's ``StructType``."""
    key_width: int
    """How many columns the key has. A processor is given a tuple of them, be it one."""
    initial_state: Any = None
    """The rows that the processor begins with: as the program gave them, or an `InitialState` of the runtime's."""

    @property
    def follows_watermarks(self) -> bool:
        """Whether an epoch is worth while for nothing but a watermark that has moved.

        Spark runs a batch without records then, and what is late in the next batch goes by the watermark of that one.
        """
        return self.time_mode is TimeMode.EVENT_TIME


def checked_processor(processor: Any, where: str, *, has_initial_state: bool = False) -> Any:
    """The processor; raises `JobDefinitionError` for what is none."""
    if isinstance(processor, type):
        raise JobDefinitionError(f"{where}: it was given the class {processor.__name__}; make an instance")
    methods = (*_METHODS, "handleInitialState") if has_initial_state else _METHODS
    missing = [name for name in methods if not callable(getattr(processor, name, None))]
    if missing:
        raise JobDefinitionError(
            f"{where}: {format_value(processor, 80)} is no StatefulProcessor: it lacks {', '.join(missing)}"
        )
    return processor
