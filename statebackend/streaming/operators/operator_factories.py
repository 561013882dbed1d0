"""Maps the function of a graph node to the factory of its operator, which runtimes send to their subtasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from statebackend.streaming.aggregates import AggregateDefinition
from statebackend.streaming.async_functions import AsyncWaitDefinition
from statebackend.streaming.batch_functions import KeyedBatchFunction
from statebackend.streaming.broadcast_functions import BroadcastProcessDefinition
from statebackend.streaming.connected_streams import IntervalJoinDefinition
from statebackend.streaming.functions import KeyedCoProcessFunction, KeyedMultipleInputFunction, KeyedProcessFunction
from statebackend.streaming.operators.aggregate import AggregateOperator
from statebackend.streaming.operators.async_wait import AsyncWaitOperator
from statebackend.streaming.operators.broadcast_process import broadcast_process_operator
from statebackend.streaming.operators.interval_join import IntervalJoinOperator
from statebackend.streaming.operators.keyed_batch import KeyedBatchOperator
from statebackend.streaming.operators.keyed_process import (
    KeyedProcessOperator,
    keyed_co_process_operator,
    keyed_multiple_input_operator,
)
from statebackend.streaming.operators.operator import Operator
from statebackend.streaming.operators.stateful_processor import StatefulProcessorOperator
from statebackend.streaming.operators.window_operator import WindowOperator
from statebackend.streaming.stateful_processor import StatefulProcessorFunction
from statebackend.streaming.windows.window_definition import WindowDefinition

__all__ = ["OPERATORS", "OperatorFactory", "operator_factory"]

OperatorFactory = Callable[[Any, str], Operator]
"""Creates an operator from a function and its uid; importable by name, so that it can be sent to workers."""

OPERATORS: Final[Mapping[type, OperatorFactory]] = {
    KeyedProcessFunction: KeyedProcessOperator,
    KeyedBatchFunction: KeyedBatchOperator,
    KeyedCoProcessFunction: keyed_co_process_operator,
    KeyedMultipleInputFunction: keyed_multiple_input_operator,
    BroadcastProcessDefinition: broadcast_process_operator,
    IntervalJoinDefinition: IntervalJoinOperator,
    StatefulProcessorFunction: StatefulProcessorOperator,
    AggregateDefinition: AggregateOperator,
    AsyncWaitDefinition: AsyncWaitOperator,
    WindowDefinition: WindowOperator,
}


def operator_factory(function: object) -> OperatorFactory:
    """Return the factory for a function, by its class or a base of it. Raises `KeyError` for others."""
    for kind in type(function).__mro__:
        if kind in OPERATORS:
            return OPERATORS[kind]
    raise KeyError(type(function))
