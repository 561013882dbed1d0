"""An operator of a job in this process: what is known of its input, the keys of its records, the form of what it emits.

The types of its keys come from the declared schema of its input. Where there is none (plain elements, or what a
transform makes of records) the first record decides; a job that continues is judged as soon as they are known.

In a union of streams of which one has rows all records become rows of one schema, checked where they are none yet: the
types of its keys are the same whatever the order of the streams.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from attrs import define, field, frozen

from statebackend.api.key_groups import subtask_of_key_group
from streamjobs.api.key_types import canonical_key, key_serializer_for
from streamjobs.api.output_tag import OutputTag
from streamjobs.api.stream_graph import (
    JobGraph,
    OperatorNode,
    SinkNode,
    SourceNode,
    StreamEdge,
    TimestampsNode,
    TransformNode,
    UnionNode,
)
from streamjobs.inprocess.keys import column_types, field_getter
from streamjobs.inprocess.local_stream import LocalStream, largest_timestamps
from streamjobs.operators.input_batch import ObjectBatch, check_keys
from streamjobs.rows.declared_schema import (
    OF_OUTPUT_TAG,
    OF_PROCESS,
    DeclaredSchema,
    check_not_reserved,
    output_schema,
    place_of_output,
    unknown_column,
)
from streamjobs.rows.row_reader import RowReader
from streamjobs.rows.row_writer import RowWriter
from streamjobs.rows.union import rows_as, united_guess, united_schema
from streamjobs.runtime.key_hash import KeyHashError, key_group_hasher
from streamjobs.runtime.state_registration import RegisteredStates, registered_states
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["ElementSource", "LocalOperator", "PreparedGraph", "Recast", "prepare_graph", "rows_of"]

Getter = Callable[[Any], Any]
Recast = Callable[[Sequence[Any]], list[Any]]
"""Makes of the records of a stream those of a union that it is part of."""


@frozen
class ElementSource:
    """Elements, and their schema if it is declared; they are rows of it then."""

    elements: list[Any] = field(eq=False)
    schema: DeclaredSchema | None = None


@frozen
class _Input:
    """What is known of a stream: its schema, whether its records are rows of it, and of sources the first record.

    ``first`` gives that alone, or none. It is asked only for what the schema does not tell.
    """

    schema: DeclaredSchema | None
    is_rows: bool
    first: Callable[[], Sequence[Any]] = tuple


@frozen
class _KeyColumns:
    types: tuple[str, ...]
    key_group_of: Callable[[Any], int]


@define
class LocalOperator:
    """See the module; ``key_serializer`` is None as long as the types of the keys are not known."""

    node: OperatorNode
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

    def make_function(self) -> Any:
        """A function of a subtask's own."""
        return copy.deepcopy(self.node.function)

    def learn_keys(self, first_record: Any) -> None:
        """Takes the types of the keys from a record, where the schema does not tell them."""
        self._set_types(
            column_types(self._key_getters, self._declared, self.node.sole_input.keys, first_record, self.uid)
        )

    def learn_declared_keys(self) -> None:
        """Takes the types of the keys from the schema, if it tells all of them."""
        declared = self._declared
        types = [
            declared.type_of(key) if declared and isinstance(key, str) else None for key in self.node.sole_input.keys
        ]
        known = tuple(name for name in types if name is not None)
        if len(known) == len(types):
            self._set_types(known)

    def _set_types(self, types: tuple[str, ...]) -> None:
        self.key_serializer = key_serializer_for(types, self.uid)
        self._columns = _KeyColumns(types, key_group_hasher(types, self.max_parallelism))

    def shares(self, stream: LocalStream, parallelism: int) -> Sequence[Sequence[ObjectBatch]]:
        """The records of each subtask, in order, with their keys and key groups: early ones in a batch of their own."""
        if not stream.early:
            return [[one] for one in self._shares_of(stream, parallelism, is_early=False)]
        count = len(stream.records)
        early = self._shares_of(stream.of(range(stream.early)), parallelism, is_early=True)
        others = self._shares_of(stream.of(range(stream.early, count)), parallelism, is_early=False)
        return list(zip(early, others, strict=True))

    def _shares_of(self, stream: LocalStream, parallelism: int, *, is_early: bool) -> Sequence[ObjectBatch]:
        if self._columns is None:
            return [ObjectBatch((), (), ())] * parallelism
        records = stream.records
        keys = self._keys_of(records)
        key_groups = self._key_groups_of(keys)
        shares: list[list[int]] = [[] for _ in range(parallelism)]
        for index, key_group in enumerate(key_groups):
            shares[subtask_of_key_group(key_group, parallelism, self.max_parallelism)].append(index)
        for share in shares if self._order_getters else ():
            share.sort(key=lambda index: [_nulls_first(get(records[index])) for get in self._order_getters])
        return [self._batch(stream, keys, key_groups, share, is_early) for share in shares]

    def _batch(
        self, stream: LocalStream, keys: list[Any], key_groups: list[int], share: list[int], is_early: bool
    ) -> ObjectBatch:
        own = stream.of(share)
        return ObjectBatch(
            own.records,
            [keys[index] for index in share],
            [key_groups[index] for index in share],
            own.timestamps,
            largest_timestamps(own),
            is_early,
        )

    def emitted_rows(self, tag: OutputTag[Any] | None, records: Sequence[Any]) -> list[Any]:
        """What a subtask emitted, as rows of the declared schema; `RowMismatchError` for what is none."""
        return rows_of(records, self.outputs[tag], place_of_output(self.uid, tag.name if tag is not None else None))

    def _keys_of(self, records: list[Any]) -> list[Any]:
        assert self._columns is not None
        columns = [[get(record) for record in records] for get in self._key_getters]
        for index, canonical in enumerate(map(canonical_key, self._columns.types)):
            if canonical is not None:
                columns[index] = list(map(canonical, columns[index]))
        is_composite = len(columns) > 1
        self._refuse_truth_values(columns)
        keys: list[Any] = list(zip(*columns, strict=True)) if is_composite else columns[0]
        check_keys(self.uid, keys, is_composite)
        return keys

    def _key_groups_of(self, keys: list[Any]) -> list[int]:
        assert self._columns is not None
        try:
            return [self._columns.key_group_of(key) for key in keys]
        except KeyHashError as error:
            raise self._unlike(str(error)) from error

    def _refuse_truth_values(self, columns: Sequence[Sequence[Any]]) -> None:
        """To Python True is 1, and would have the state of the key 1."""
        assert self._columns is not None
        for index, (type_name, column) in enumerate(zip(self._columns.types, columns, strict=True)):
            if type_name in _WHOLE_NUMBERS and bool in set(map(type, column)):
                raise self._unlike(f"key column {index} is of type {type_name}, which cannot hold a bool")

    def _unlike(self, reason: str) -> KeyHashError:
        return KeyHashError(
            f"operator {self.uid!r}: {reason}. The first record decides on the types of a key; give all "
            f"records keys of the same types before key_by"
        )


_WHOLE_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint")


def rows_of(records: Sequence[Any], schema: DeclaredSchema, where: str | None = None) -> list[Any]:
    """Records as rows of a schema, checked as on Spark; ``where`` begins the messages of errors."""
    reader = RowReader(schema.arrow, where)
    return [row for batch in RowWriter(schema.arrow, where).batches(records) for row in reader.rows(batch)]


@frozen
class PreparedGraph:
    """The operators of a job by uid, and for each union what is done to the records of each of its inputs."""

    operators: Mapping[str, LocalOperator]
    unions: Mapping[UnionNode, Sequence[Recast]]


def prepare_graph(graph: JobGraph, parallelism: int, max_parallelism: int) -> PreparedGraph:
    """Checks a job and asks its operators for their state.

    Raises `JobDefinitionError`, and `RowMismatchError` if the first element of a source is no row of its schema.
    """
    preparation = _Preparation(graph, parallelism, max_parallelism)
    for node in graph.nodes:
        _PREPARERS[type(node)](preparation, node)
    return PreparedGraph(preparation.operators, preparation.unions)


class _Preparation:
    """The nodes seen so far."""

    def __init__(self, graph: JobGraph, parallelism: int, max_parallelism: int) -> None:
        self._graph = graph
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._inputs: dict[StreamEdge, _Input] = {}
        self.operators: dict[str, LocalOperator] = {}
        self.unions: dict[UnionNode, Sequence[Recast]] = {}

    def source(self, node: SourceNode) -> None:
        source: ElementSource = node.source
        first = source.elements[:1]
        recast: Recast = list if source.schema is None else partial(rows_of, schema=source.schema)
        self._inputs[StreamEdge(node)] = _Input(source.schema, source.schema is not None, partial(recast, first))

    def transform(self, node: TransformNode) -> None:
        # It may do anything; a name that is left is taken to mean the same type.
        self._inputs[StreamEdge(node)] = _Input(self._inputs[node.inputs[0]].schema, is_rows=False)

    def timestamps(self, node: TimestampsNode) -> None:
        # The records are what they were.
        for edge in (StreamEdge(node), *(StreamEdge(node, tag) for tag in self._graph.side_outputs(node))):
            self._inputs[edge] = self._inputs[node.inputs[0]]

    def unite(self, node: UnionNode) -> None:
        inputs = [self._inputs[edge] for edge in node.inputs]
        of_rows = [one.schema for one in inputs if one.schema is not None and one.is_rows]
        guesses = [one.schema for one in inputs if one.schema is not None]
        schema: DeclaredSchema | None = None
        recasts: Sequence[Recast] = [list] * len(inputs)
        if of_rows:
            schema = united_schema(of_rows)
            recasts = [_recast(one, schema) for one in inputs]
        elif len(guesses) == len(inputs):
            schema = united_guess(guesses)
        self.unions[node] = recasts

        def first() -> Sequence[Any]:
            firsts = (recast(one.first()) for one, recast in zip(inputs, recasts, strict=True))
            return next(filter(None, firsts), ())

        self._inputs[StreamEdge(node)] = _Input(schema, bool(of_rows), first)

    def process(self, node: OperatorNode) -> None:
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
    TimestampsNode: _Preparation.timestamps,
    OperatorNode: _Preparation.process,
    SinkNode: _Preparation.end,
}


def _prepared(
    node: OperatorNode,
    inputs: _Input,
    tags: Sequence[OutputTag[Any]],
    parallelism: int,
    max_parallelism: int,
) -> LocalOperator:
    where = place_of_output(node.uid)
    if inputs.is_rows and inputs.schema is not None:
        check_not_reserved(inputs.schema.names, node.uid)
    outputs: dict[OutputTag[Any] | None, DeclaredSchema] = {None: output_schema(node.schema, where, OF_PROCESS)}
    for tag in tags:
        outputs[tag] = output_schema(tag.schema, place_of_output(node.uid, tag.name), OF_OUTPUT_TAG)
    operator = LocalOperator(
        node,
        registered_states(
            copy.deepcopy(node.function), node.uid, parallelism, (inputs.schema if inputs.is_rows else None,)
        ),
        outputs,
        max_parallelism,
        declared=inputs.schema,
        key_getters=_getters(node.sole_input.keys, node.uid, "key_by", inputs),
        order_getters=_getters(node.sole_input.order_by, node.uid, "order_by", inputs),
    )
    operator.learn_declared_keys()
    for record in () if operator.knows_keys else inputs.first():
        operator.learn_keys(record)
    return operator


def _recast(one: _Input, united: DeclaredSchema) -> Recast:
    if one.is_rows and one.schema is not None:
        return rows_as(one.schema, united)
    return partial(rows_of, schema=united, where="union()")


def _getters(columns: Sequence[Any], uid: str, given_to: str, inputs: _Input) -> Sequence[Getter]:
    for column in columns:
        is_named = isinstance(column, str) and inputs.is_rows and inputs.schema is not None
        if is_named and inputs.schema is not None and inputs.schema.type_of(column) is None:
            raise unknown_column(uid, given_to, column, inputs.schema.names)
    return [field_getter(column, uid, given_to) for column in columns]


def _nulls_first(value: Any) -> tuple[bool, Any]:
    return value is not None, value
