"""Spark's stateful processors as functions of the graph.

A processor is any object with the methods of PySpark's ``StatefulProcessor`` in its row form. It is recognised by
its methods, so this module does not import Spark. Method names are Spark's, because Spark programs call them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, Final, Protocol

from attrs import frozen

from snapshots.errors import format_value
from statebackend.streaming.errors import JobDefinitionError

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
    """The time domain of a processor's timers. The values are Spark's names."""

    NONE = "none"
    PROCESSING_TIME = "processingTime"
    EVENT_TIME = "eventTime"

    @classmethod
    def named(cls, name: object, where: str) -> TimeMode:
        """Return the mode with this name, in any case. Raises `JobDefinitionError` for an unknown name."""
        for mode in cls:
            if isinstance(name, str) and name.lower() == mode.value.lower():
                return mode
        known = ", ".join(repr(mode.value) for mode in cls)
        raise JobDefinitionError(f"{where}: time_mode is {format_value(name, 80)}; pass one of {known}")


_OUTPUT_MODES: Final = ("append", "update")


def checked_output_mode(name: object, where: str) -> str:
    """Return the name of an output mode in lower case. Raises `JobDefinitionError` for an unsupported mode."""
    if isinstance(name, str) and name.lower() in _OUTPUT_MODES:
        return name.lower()
    advice = (
        "; a processor's rows are written as emitted, so choose 'update' and let the sink replace rows by key"
        if isinstance(name, str) and name.lower() == "complete"
        else ""
    )
    raise JobDefinitionError(f"{where}: output_mode is {format_value(name, 80)}; pass 'append' or 'update'{advice}")


class TimerValues:
    """The time of the epoch for a processor; -1 in the time mode "none"."""

    __slots__ = ("_processing_time_ms", "_watermark_ms")

    def __init__(self, processing_time_ms: int = -1, watermark_ms: int = -1) -> None:
        self._processing_time_ms = processing_time_ms
        self._watermark_ms = watermark_ms

    def getCurrentProcessingTimeInMs(self) -> int:  # noqa: N802
        """The processing time of the epoch, in milliseconds since 1970."""
        return self._processing_time_ms

    def getCurrentWatermarkInMs(self) -> int:  # noqa: N802
        """The watermark of the epoch in milliseconds since 1970, or 0 before the first one."""
        return self._watermark_ms


class ExpiredTimerInfo:
    """The timer that has expired."""

    __slots__ = ("_expiry_time_ms",)

    def __init__(self, expiry_time_ms: int = -1) -> None:
        self._expiry_time_ms = expiry_time_ms

    def getExpiryTimeInMs(self) -> int:  # noqa: N802
        """The time of the timer, in milliseconds since 1970."""
        return self._expiry_time_ms


_METHODS: Final = ("init", "handleInputRows", "handleExpiredTimer", "close")


class InitialState(Protocol):
    """Rows for ``handleInitialState``, passed once, before the first records of a new operator."""

    def batches(self, subtask_index: int, parallelism: int) -> Iterable[Any]:
        """The rows of one subtask, as batches of records with their keys and key groups."""


@frozen(eq=False)
class StatefulProcessorFunction:
    """A processor and the arguments of `transform_with_state`; the function of its graph node.

    Within an epoch the records of a key must be consecutive, which sorting by the key columns ensures.
    """

    processor: Any
    time_mode: TimeMode
    output_schema: Any
    """The schema of the emitted rows: DDL, or Spark's ``StructType``."""
    key_width: int
    """The number of key columns. A processor always receives the key as a tuple."""
    initial_state: Any = None
    """The initial rows: as the program passed them, or the runtime's `InitialState`."""

    @property
    def follows_watermarks(self) -> bool:
        """Whether a new watermark alone requires an epoch.

        Spark runs a no-data micro-batch then, and the next batch decides about late rows by that batch's watermark.
        """
        return self.time_mode is TimeMode.EVENT_TIME


def checked_processor(processor: Any, where: str, *, has_initial_state: bool = False) -> Any:
    """Return the processor. Raises `JobDefinitionError` if it lacks a method of a StatefulProcessor."""
    if isinstance(processor, type):
        raise JobDefinitionError(f"{where}: the argument is the class {processor.__name__}; pass an instance")
    methods = (*_METHODS, "handleInitialState") if has_initial_state else _METHODS
    missing = [name for name in methods if not callable(getattr(processor, name, None))]
    if missing:
        raise JobDefinitionError(
            f"{where}: {format_value(processor, 80)} is not a StatefulProcessor: it lacks {', '.join(missing)}"
        )
    return processor
