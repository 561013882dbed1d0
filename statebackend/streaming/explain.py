"""Explains how the operators of a job take their records and access their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from statebackend.savepoint.column_codecs import column_codec
from statebackend.state.list_state import ListStateDescriptor
from statebackend.state.map_state import MapStateDescriptor
from statebackend.state.metrics import StateMetricsConfig
from statebackend.state.state_backend import StateBackend
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.ttl_config import TtlStateVisibility
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.streaming.aggregates import AggregateDefinition, bound_aggregates
from statebackend.streaming.batch_functions import KeyedBatchFunction
from statebackend.streaming.compatibility_check import StartingOperator
from statebackend.streaming.operators.aggregate import aggregates_of
from statebackend.streaming.rows.declared_schema import DeclaredSchema
from statebackend.streaming.stream_graph import OperatorNode
from typeserializers.containers.lists import ListSerializer

__all__ = ["ExplainedOperator", "explain_operators"]


class ExplainedOperator(StartingOperator, Protocol):
    """An operator of either runtime, with its node of the graph."""

    @property
    def node(self) -> OperatorNode: ...


def explain_operators(
    operators: Mapping[str, ExplainedOperator], backend: StateBackend, metrics: StateMetricsConfig | None
) -> str:
    """Return a line for each operator and each of its keyed states."""
    lines = []
    for uid, operator in operators.items():
        function, states = operator.node.function, operator.states
        lines.append(f"operator {uid!r}: {_records(function, states.input_schemas, uid)}")
        for one in states.keyed:
            obstacle = "per record"
            if isinstance(function, KeyedBatchFunction):
                obstacle = _obstacle(one, backend, metrics)
            elif aggregates_of(function) is not None:
                obstacle = _obstacle_of_aggregates(function, states.input_schemas[0], uid, one, backend, metrics)
            access = f"as objects ({obstacle})" if obstacle else "vectorised"
            lines.append(f"    {one.kind.name} state {one.name!r}: {access}")
    return "\n".join(lines)


def _records(function: Any, schemas: Sequence[DeclaredSchema | None], uid: str) -> str:
    if isinstance(function, KeyedBatchFunction):
        return "batches of Arrow columns"
    aggregates = aggregates_of(function)
    if aggregates is None:
        return "record by record"
    ordered = bound_aggregates(aggregates, schemas[0], f"operator {uid!r}").without_partials
    if ordered:
        return f"aggregates, record by record because of {', '.join(ordered)}"
    return "aggregates; Arrow aggregates batches of columns by key before state is read"


def _obstacle_of_aggregates(
    function: Any,
    schema: DeclaredSchema | None,
    uid: str,
    descriptor: StateDescriptor,
    backend: StateBackend,
    metrics: StateMetricsConfig | None,
) -> str:
    """Return how often accumulators are converted one by one; empty if they are vectorised."""
    if isinstance(function, AggregateDefinition):
        columns = bound_aggregates(function.aggregates, schema, f"operator {uid!r}").has_columns
        return "" if columns and not _obstacle(descriptor, backend, metrics) else "once per key and epoch"
    return "once per key, window and batch"


def _obstacle(descriptor: StateDescriptor, backend: StateBackend, metrics: StateMetricsConfig | None) -> str:
    """Return why bulk state converts values one by one; empty if it is vectorised."""
    if isinstance(descriptor, MapStateDescriptor):
        return "map state is not vectorised"
    of_rows = ("rocksdb",) if isinstance(descriptor, ListStateDescriptor) else ("rocksdb", "heap")
    if backend.name not in of_rows:
        return f"the backend {backend.name} keeps objects"
    if metrics is not None:
        return "state metrics are on"
    ttl = descriptor.ttl
    if ttl is not None and not isinstance(descriptor, ValueStateDescriptor):
        return "it has a time-to-live"
    if ttl is not None and ttl.visibility is TtlStateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP:
        return "its expired values are visible"
    [serializer] = descriptor.serializers.values()
    if isinstance(descriptor, ListStateDescriptor):
        serializer = ListSerializer(serializer)
    return "" if column_codec(serializer) is not None else "its type has no vectorised codec"
