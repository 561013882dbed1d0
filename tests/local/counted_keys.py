"""The smallest function with state: counts the records of each key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from statebackend import KeyedProcessFunction, ProcessContext, RuntimeContext, ValueStateDescriptor


class Count(KeyedProcessFunction[str, Any, Any]):
    """Emits, for each record, its key and the count of the key."""

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield context.current_key, self.count.value()
