"""An operator of a job in this process: what is known of its input, the keys of its records, the form of what it emits.

The types of its keys come from the declared schema of its input. Where there is none (plain elements, or what a
transform makes of records) the first record decides; a job that continues is judged as soon as they are known.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import define, field, frozen

from statebackend.api.key_groups import subtask_of_key_group
from streamjobs.api.functions import KeyedProcessFunction
from streamjobs.api.key_types import canonical_key, key_serializer_for
from streamjobs.api.output_tag import OutputTag
from streamjobs.api.stream_graph import (
    JobGraph,
    KeyedProcessNode,
    SinkNode,
    SourceNode,
    StreamEdge,
    TransformNode,
    UnionNode,
)
from streamjobs.errors import JobDefinitionError
from streamjobs.inprocess.keys import column_types, field_getter
from streamjobs.operators.input_batch import ObjectBatch, check_keys
from streamjobs.rows.declared_schema import (
    OF_OUTPUT_TAG,
    OF_PROCESS,
    DeclaredSchema,
    check_not_reserved,
    output_schema,
    unknown_column,
)
from streamjobs.rows.row_reader import RowReader
from streamjobs.rows.row_writer import RowWriter
from streamjobs.runtime.key_hash import KeyHashError, key_group_hasher
from streamjobs.runtime.state_registration import RegisteredStates, registered_states
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["ElementSource", "LocalOperator", "prepare_operators", "rows_of"]

Getter = Callable[[Any], Any]


@frozen
class ElementSource:
    """Elements, and their schema if it is declared; they are rows of it then."""

    elements: list[Any] = field(eq=False)
    schema: DeclaredSchema | None = None


@frozen
class _Input:
    """What is known of a stream: its schema, whether its records are rows of it, and the first of plain elements."""

    schema: DeclaredSchema | None
    is_rows: bool
    first: Any = None


@frozen
class _KeyColumns:
    types: tuple[str, ...]
    key_group_of: Callable[[Any], int]


@define
class LocalOperator:
    """See the module; ``key_serializer`` is None as long as the types of the keys are not known."""

    node: KeyedProcessNode
    states: RegisteredStates
    outputs: Mapping[OutputTag[Any] | None, DeclaredSchema]
    max_parallelism: int
    key_serializer: TypeSerializer[Any] | None = None
    _declared: DeclaredSchema | None = None
    _key_getters: Sequence[Getter] = ()
    _order_getters: Sequence[Getter] = ()
    _columns: _KeyColumns | None = None

    @property
    def uid(self) -> str:
        """The uid of the operator."""
        return self.node.uid

    @property
    def knows_keys(self) -> bool:
        """Whether the types of the keys are known, from the schema or from a record."""
        return self._columns is not None

    def make_function(self) -> KeyedProcessFunction[Any, Any, Any]:
        """A function of a subtask's own."""
        return copy.deepcopy(self.node.function)

    def learn_keys(self, first_record: Any) -> None:
        """Takes the types of the keys from a record, where the schema does not tell them."""
        self._set_types(column_types(self._key_getters, self._declared, self.node.keys, first_record, self.uid))

    def learn_declared_keys(self) -> None:
        """Takes the types of the keys from the schema, if it tells all of them."""
        declared = self._declared
        types = [declared.type_of(key) if declared and isinstance(key, str) else None for key in self.node.keys]
        known = tuple(name for name in types if name is not None)
        if len(known) == len(types):
            self._set_types(known)

    def _set_types(self, types: tuple[str, ...]) -> None:
        self.key_serializer = key_serializer_for(types, self.uid)
        self._columns = _KeyColumns(types, key_group_hasher(types, self.max_parallelism))

    def shares(self, records: list[Any], parallelism: int) -> Sequence[ObjectBatch]:
        """The records of each subtask, in order, with their keys and key groups."""
        if self._columns is None:
            return [ObjectBatch((), (), ())] * parallelism
        keys = self._keys_of(records)
        key_groups = self._key_groups_of(keys)
        shares: list[list[int]] = [[] for _ in range(parallelism)]
        for index, key_group in enumerate(key_groups):
            shares[subtask_of_key_group(key_group, parallelism, self.max_parallelism)].append(index)
        for share in shares if self._order_getters else ():
            share.sort(key=lambda index: [_nulls_first(get(records[index])) for get in self._order_getters])
        return [
            ObjectBatch(*([sequence[index] for index in share] for sequence in (records, keys, key_groups)))
            for share in shares
        ]

    def emitted_rows(self, tag: OutputTag[Any] | None, records: Sequence[Any]) -> list[Any]:
        """What a subtask emitted, as rows of the declared schema; `RowMismatchError` for what is none."""
        return rows_of(records, self.outputs[tag], self.uid if tag is None else f"{self.uid}, side output {tag.name}")

    def _keys_of(self, records: list[Any]) -> list[Any]:
        assert self._columns is not None
        columns = [[get(record) for record in records] for get in self._key_getters]
        for index, canonical in enumerate(map(canonical_key, self._columns.types)):
            if canonical is not None:
                columns[index] = list(map(canonical, columns[index]))
        is_composite = len(columns) > 1
        keys: list[Any] = list(zip(*columns, strict=True)) if is_composite else columns[0]
        check_keys(self.uid, keys, is_composite)
        return keys

    def _key_groups_of(self, keys: list[Any]) -> list[int]:
        assert self._columns is not None
        try:
            return [self._columns.key_group_of(key) for key in keys]
        except KeyHashError as error:
            raise KeyHashError(
                f"operator {self.uid!r}: {error}. The first record decides on the types of a key; give all "
                f"records keys of the same types before key_by"
            ) from error


def rows_of(records: Sequence[Any], schema: DeclaredSchema, operator_uid: str | None) -> list[Any]:
    """Records as rows of a schema, checked as on Spark; ``operator_uid`` is who emitted them, None for a source."""
    reader = RowReader(schema.arrow, operator_uid)
    return [row for batch in RowWriter(schema.arrow, operator_uid).batches(records) for row in reader.rows(batch)]


def prepare_operators(graph: JobGraph, parallelism: int, max_parallelism: int) -> Mapping[str, LocalOperator]:
    """Checks the operators of a job and asks for their state; raises `JobDefinitionError`."""
    preparation = _Preparation(graph, parallelism, max_parallelism)
    for node in graph.nodes:
        _PREPARERS[type(node)](preparation, node)
    return preparation.operators


class _Preparation:
    """The nodes seen so far."""

    def __init__(self, graph: JobGraph, parallelism: int, max_parallelism: int) -> None:
        self._graph = graph
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._inputs: dict[StreamEdge, _Input] = {}
        self.operators: dict[str, LocalOperator] = {}

    def source(self, node: SourceNode) -> None:
        source: ElementSource = node.source
        first = source.elements[0] if source.elements and source.schema is None else None
        self._inputs[StreamEdge(node)] = _Input(source.schema, source.schema is not None, first)

    def transform(self, node: TransformNode) -> None:
        # It may do anything; a name that is left is taken to mean the same type.
        self._inputs[StreamEdge(node)] = _Input(self._inputs[node.inputs[0]].schema, is_rows=False)

    def unite(self, node: UnionNode) -> None:
        inputs = [self._inputs[edge] for edge in node.inputs]
        schemas = [one.schema for one in inputs if one.schema is not None and one.is_rows]
        is_rows = len(schemas) == len(inputs)
        if is_rows and len({frozenset(schema.type_names.items()) for schema in schemas}) > 1:
            columns = "; ".join(", ".join(f"{name} {kind}" for name, kind in one.type_names.items()) for one in schemas)
            raise JobDefinitionError(f"union() of streams whose columns do not fit: {columns}")
        first = next((one.first for one in inputs if one.first is not None), None)
        self._inputs[StreamEdge(node)] = _Input(inputs[0].schema, is_rows, first)

    def process(self, node: KeyedProcessNode) -> None:
        operator = _prepared(
            node, self._inputs[node.inputs[0]], self._graph.side_outputs(node), self._parallelism, self._max_parallelism
        )
        self.operators[node.uid] = operator
        for tag, schema in operator.outputs.items():
            self._inputs[StreamEdge(node, tag)] = _Input(schema, is_rows=True)

    def end(self, node: SinkNode) -> None:
        """Takes whatever comes."""


_PREPARERS: Final[Mapping[type, Callable[[_Preparation, Any], None]]] = {
    SourceNode: _Preparation.source,
    TransformNode: _Preparation.transform,
    UnionNode: _Preparation.unite,
    KeyedProcessNode: _Preparation.process,
    SinkNode: _Preparation.end,
}


def _prepared(
    node: KeyedProcessNode,
    inputs: _Input,
    tags: Sequence[OutputTag[Any]],
    parallelism: int,
    max_parallelism: int,
) -> LocalOperator:
    where = f"operator {node.uid!r}"
    if inputs.is_rows and inputs.schema is not None:
        check_not_reserved(inputs.schema.names, node.uid)
    outputs: dict[OutputTag[Any] | None, DeclaredSchema] = {None: output_schema(node.schema, where, OF_PROCESS)}
    for tag in tags:
        outputs[tag] = output_schema(tag.schema, f"{where}, side output {tag.name!r}", OF_OUTPUT_TAG)
    operator = LocalOperator(
        node,
        registered_states(copy.deepcopy(node.function), node.uid, parallelism),
        outputs,
        max_parallelism,
        declared=inputs.schema,
        key_getters=_getters(node.keys, node.uid, "key_by", inputs),
        order_getters=_getters(node.order_by, node.uid, "order_by", inputs),
    )
    if inputs.first is not None:
        operator.learn_keys(inputs.first)
    else:
        operator.learn_declared_keys()
    return operator


def _getters(columns: Sequence[Any], uid: str, given_to: str, inputs: _Input) -> Sequence[Getter]:
    for column in columns:
        is_named = isinstance(column, str) and inputs.is_rows and inputs.schema is not None
        if is_named and inputs.schema is not None and inputs.schema.type_of(column) is None:
            raise unknown_column(uid, given_to, column, inputs.schema.names)
    return [field_getter(column, uid, given_to) for column in columns]


def _nulls_first(value: Any) -> tuple[bool, Any]:
    return value is not None, value
