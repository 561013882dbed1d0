"""Which operator runs a node of the graph: one entry for each kind of function that has state.

A runtime sends what makes the operator and the user's function to its subtasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from streamjobs.api.async_definition import AsyncWaitDefinition
from streamjobs.api.broadcast_functions import BroadcastProcessDefinition
from streamjobs.api.co_functions import KeyedCoProcessFunction, KeyedMultipleInputFunction
from streamjobs.api.functions import KeyedProcessFunction
from streamjobs.api.interval_join import IntervalJoinDefinition
from streamjobs.api.stateful_processor import StatefulProcessorFunction
from streamjobs.api.windows.window_definition import WindowDefinition
from streamjobs.operators.async_io.async_wait_operator import AsyncWaitOperator
from streamjobs.operators.broadcast_process import broadcast_process_operator
from streamjobs.operators.interval_join_operator import IntervalJoinOperator
from streamjobs.operators.keyed_process import (
    KeyedProcessOperator,
    keyed_co_process_operator,
    keyed_multiple_input_operator,
)
from streamjobs.operators.operator import Operator
from streamjobs.operators.stateful_processor.processor_operator import StatefulProcessorOperator
from streamjobs.operators.windows.window_operator import WindowOperator

__all__ = ["OPERATORS", "OperatorFactory", "operator_factory"]

OperatorFactory = Callable[[Any, str], Operator]
"""Makes an operator of a function and the uid of its node; importable by name, so that it can be sent to workers."""

OPERATORS: Final[Mapping[type, OperatorFactory]] = {
    KeyedProcessFunction: KeyedProcessOperator,
    KeyedCoProcessFunction: keyed_co_process_operator,
    KeyedMultipleInputFunction: keyed_multiple_input_operator,
    BroadcastProcessDefinition: broadcast_process_operator,
    IntervalJoinDefinition: IntervalJoinOperator,
    StatefulProcessorFunction: StatefulProcessorOperator,
    AsyncWaitDefinition: AsyncWaitOperator,
    WindowDefinition: WindowOperator,
}


def operator_factory(function: object) -> OperatorFactory:
    """What makes the operator of a function, by its class or a base of it; `KeyError` if there is none."""
    for kind in type(function).__mro__:
        if kind in OPERATORS:
            return OPERATORS[kind]
    raise KeyError(type(function))
