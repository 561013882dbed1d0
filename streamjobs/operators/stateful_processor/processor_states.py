"""State as a processor sees it: Spark's handles over ours. Names and meaning of the methods are Spark's.

State with a time-to-live is seen until it expires, which is counted per value, per element of a list and per entry of a
map from the last write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from statebackend.api.states import ListState, MapState, ValueState
from streamjobs.operators.stateful_processor.state_schemas import ProcessorSchema

__all__ = ["ProcessorListState", "ProcessorMapState", "ProcessorValueState"]


class ProcessorValueState:
    """One value."""

    __slots__ = ("_state", "_stored", "_values")

    def __init__(self, state: ValueState[Any], schema: ProcessorSchema) -> None:
        self._state = state
        self._stored = schema.stored
        self._values = schema.values

    def exists(self) -> bool:
        """Whether there is a value."""
        return self._state.value() is not None

    def get(self) -> tuple[Any, ...] | None:
        """The value, None if there is none."""
        stored = self._state.value()
        return None if stored is None else self._values(stored)

    def update(self, newValue: Any) -> None:  # noqa: N803
        """Sets the value."""
        self._state.update(self._stored(newValue))

    def clear(self) -> None:
        """Removes the value."""
        self._state.clear()


class ProcessorListState:
    """A list in the order of appending."""

    __slots__ = ("_schema", "_state")

    def __init__(self, state: ListState[Any], schema: ProcessorSchema) -> None:
        self._state = state
        self._schema = schema

    def exists(self) -> bool:
        """Whether there is an element."""
        return bool(self._state.get())

    def get(self) -> Iterator[tuple[Any, ...]]:
        """The elements as they are now."""
        return map(self._schema.values, self._state.get())

    def put(self, newState: Sequence[Any]) -> None:  # noqa: N803
        """Replaces the list; raises `ValueError` for an empty one, as Spark does."""
        self._state.update(self._all_stored(newState, "put"))

    def appendValue(self, newState: Any) -> None:  # noqa: N802, N803
        """Appends one element."""
        self._state.add(self._schema.stored(newState))

    def appendList(self, newState: Sequence[Any]) -> None:  # noqa: N802, N803
        """Appends elements; raises `ValueError` for an empty list, as Spark does."""
        self._state.add_all(self._all_stored(newState, "appendList"))

    def clear(self) -> None:
        """Removes the list."""
        self._state.clear()

    def _all_stored(self, values: Sequence[Any], method: str) -> list[Any]:
        stored = list(map(self._schema.stored, values))
        if not stored:
            raise ValueError(f"{self._schema.where}: {method}() was given an empty list; call clear(), or nothing")
        return stored


class ProcessorMapState:
    """A map whose entries are read and written one by one; it is gone through in no promised order."""

    __slots__ = ("_key", "_state", "_value")

    def __init__(self, state: MapState[Any, Any], key: ProcessorSchema, value: ProcessorSchema) -> None:
        self._state = state
        self._key = key
        self._value = value

    def exists(self) -> bool:
        """Whether there is an entry."""
        return not self._state.is_empty()

    def getValue(self, key: Any) -> Any:  # noqa: N802
        """The value of an entry as a Row, None if there is none."""
        stored = self._state.get(self._key.stored(key))
        return None if stored is None else self._value.row(stored)

    def containsKey(self, key: Any) -> bool:  # noqa: N802
        """Whether there is an entry."""
        return self._state.contains(self._key.stored(key))

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
        """Sets one entry."""
        self._state.put(self._key.stored(key), self._value.stored(value))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """All entries; they may be changed while iterating."""
        key, value = self._key.values, self._value.values
        return ((key(one), value(other)) for one, other in self._state.items())

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """The keys of all entries."""
        return map(self._key.values, self._state.keys())

    def values(self) -> Iterator[tuple[Any, ...]]:
        """The values of all entries."""
        return map(self._value.values, self._state.values())

    def removeKey(self, key: Any) -> None:  # noqa: N802
        """Removes one entry; a missing one is no error."""
        self._state.remove(self._key.stored(key))

    def clear(self) -> None:
        """Removes all entries."""
        self._state.clear()
