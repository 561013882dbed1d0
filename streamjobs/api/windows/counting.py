"""Counting the records of windows, as a row for each key and window.

How many records there are is seen without looking at them. So where they come in columns, an operator counts a whole
batch at once, and makes no objects of its records.
"""

from __future__ import annotations

from typing import Any

from statebackend.api.aggregate_function import AggregateFunction
from streamjobs.api.windows.window_functions import ProcessWindowFunction, WindowContext

__all__ = ["Count", "KeyAndWindow"]


class Count(AggregateFunction[Any, int, int]):
    """How many records there are."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, left: int, right: int) -> int:
        return left + right


class KeyAndWindow(ProcessWindowFunction[Any, Any, Any, Any]):
    """Emits what was made of a window behind the key and the window's start and end, both in milliseconds.

    A key of several columns is as many values of the row.
    """

    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> list[tuple[Any, ...]]:
        window = context.window
        parts = key if key.__class__ is tuple else (key,)
        return [(*parts, window.start, window.end, element) for element in elements]
