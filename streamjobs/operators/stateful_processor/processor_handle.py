"""What the ``init`` of a processor is given: Spark's ``StatefulProcessorHandle`` over our state.

``init`` runs on the driver too, where states are registered and cannot be used, so that a start knows what a processor
keeps before anything is touched. Each state is registered under the name that the processor gives it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NoReturn

from statebackend import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from streamjobs.api.functions import RuntimeContext
from streamjobs.api.stateful_processor import StatefulProcessorFunction, TimeMode
from streamjobs.errors import JobDefinitionError
from streamjobs.operators.stateful_processor.processor_states import (
    ProcessorListState,
    ProcessorMapState,
    ProcessorValueState,
)
from streamjobs.operators.stateful_processor.processor_timers import ProcessorTimers
from streamjobs.operators.stateful_processor.state_schemas import ProcessorSchema

__all__ = ["RESERVED_PREFIX", "ProcessorHandle"]

RESERVED_PREFIX: Final = "__statebackend_"
"""What the names of states begin with that the operator keeps beside those of the processor."""


class ProcessorHandle:
    """See the module; names and arguments are Spark's. ``timers`` is None in the time mode "none"."""

    def __init__(
        self, function: StatefulProcessorFunction, context: RuntimeContext, timers: ProcessorTimers | None
    ) -> None:
        self._mode = function.time_mode
        self._context = context
        self._timers = timers
        self._names: set[str] = set()
        self._is_open = True

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ProcessorValueState:  # noqa: N802, N803
        """Registers a value state."""
        where, ttl = self._new(stateName, ttlDurationMs)
        values = ProcessorSchema(schema, where)
        state: Any = self._context.register(ValueStateDescriptor(stateName, values.serializer, ttl=ttl))
        return ProcessorValueState(state, values)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ProcessorListState:  # noqa: N802, N803
        """Registers a list state."""
        where, ttl = self._new(stateName, ttlDurationMs)
        elements = ProcessorSchema(schema, where)
        state: Any = self._context.register(ListStateDescriptor(stateName, elements.serializer, ttl=ttl))
        return ProcessorListState(state, elements)

    def getMapState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        userKeySchema: Any,  # noqa: N803
        valueSchema: Any,  # noqa: N803
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> ProcessorMapState:
        """Registers a map state."""
        where, ttl = self._new(stateName, ttlDurationMs)
        keys = ProcessorSchema(userKeySchema, f"{where}, key")
        values = ProcessorSchema(valueSchema, f"{where}, value")
        state: Any = self._context.register(MapStateDescriptor(stateName, keys.serializer, values.serializer, ttl=ttl))
        return ProcessorMapState(state, keys, values)

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        """Registers a timer of the current key."""
        self._known_timers("registerTimer").register(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        """Deletes a timer of the current key; one that is not there is no error."""
        self._known_timers("deleteTimer").delete(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:  # noqa: N802
        """The times of the timers of the current key, in order."""
        return iter(self._known_timers("listTimers").listed())

    def deleteIfExists(self, stateName: str) -> None:  # noqa: N802, N803
        """Says that the processor keeps no such state any more.

        State that no ``init`` registers is dropped at a start with ``allow_non_restored_state=True``, and refused by
        any other: so nothing is done here, but for a state that this ``init`` has registered, which is an error.
        """
        if stateName in self._names:
            self._refuse(f"deleteIfExists({stateName!r}) of a state that init() registers; leave out one of both")

    def end_of_init(self) -> None:
        """From here on no state can be registered."""
        self._is_open = False

    def _new(self, name: str, ttl_ms: int | None) -> tuple[str, StateTtlConfig | None]:
        where = f"operator {self._context.operator_uid!r}, state {name!r}"
        if not self._is_open:
            raise JobDefinitionError(f"{where}: states are registered in init(), and kept in self")
        if not isinstance(name, str) or name.startswith(RESERVED_PREFIX):
            raise JobDefinitionError(f"{where}: the name of a state is text that does not begin with {RESERVED_PREFIX}")
        if name in self._names:
            raise JobDefinitionError(f"{where}: init() registers it twice; give one of them another name")
        if ttl_ms is not None and self._mode is not TimeMode.PROCESSING_TIME:
            raise JobDefinitionError(
                f"{where}: a time-to-live needs time_mode='processingTime', and this is {self._mode.value!r}"
            )
        self._names.add(name)
        return where, None if ttl_ms is None else StateTtlConfig(ttl_ms)

    def _known_timers(self, method: str) -> ProcessorTimers:
        if self._timers is None:
            self._refuse(f"{method}() in time_mode='none'; timers need 'processingTime' or 'eventTime'")
        return self._timers

    def _refuse(self, what: str) -> NoReturn:
        raise JobDefinitionError(f"operator {self._context.operator_uid!r}: {what}")
