"""An operator of a job in this process: its inputs, the types of its keys, the form of what it emits.

Where no schema tells the types of its keys, a record does (see `local_inputs`); a job that continues is judged as soon
as they are known.

In a union of streams of which one has rows all records become rows of one schema, checked where they are none yet: the
types of its keys are the same whatever the order of the streams.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from attrs import define, evolve, field, frozen

from statebackend.local.inputs import KeyColumns, KnownStream, LocalInput, LocalStream, known_key_types, local_inputs
from statebackend.streaming.key_types import key_serializer_for
from statebackend.streaming.operators.operator import ObjectBatch
from statebackend.streaming.operators.record_steps import results_of_step
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.declared_schema import (
    OF_OUTPUT_TAG,
    OF_PROCESS,
    DeclaredSchema,
    check_not_reserved,
    place_of_output,
)
from statebackend.streaming.rows.record_schema import (
    AS_RECORDS,
    RecordType,
    columns_of_class,
    output_schema,
    record_type,
)
from statebackend.streaming.rows.row_reader import RowReader
from statebackend.streaming.rows.row_writer import RowEncoder, RowWriter
from statebackend.streaming.rows.union import rows_as, united_guess, united_schema
from statebackend.streaming.runtime.state_registration import RegisteredStates, registered_states
from statebackend.streaming.stream_graph import (
    FILTER,
    BroadcastInput,
    DataFrameNode,
    JobGraph,
    Node,
    OperatorNode,
    RecordsNode,
    RecordStepNode,
    SinkNode,
    SourceNode,
    StreamEdge,
    TimestampsNode,
    UnionNode,
)
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["ElementSource", "LocalOperator", "PreparedGraph", "Recast", "prepare_graph", "rows_of"]

Recast = Callable[[Sequence[Any]], list[Any]]
"""Makes other records of the records of a stream, one of each."""

Step = Callable[[LocalStream], LocalStream]
"""Makes another stream of one input of a stateless step."""


@frozen
class ElementSource:
    """Elements, and their schema if it is declared; they are rows of it then."""

    elements: list[Any] = field(eq=False)
    schema: DeclaredSchema | None = None


@define
class LocalOperator:
    """See the module; ``key_serializer`` is None as long as the types of the keys are not known."""

    node: OperatorNode
    states: RegisteredStates
    outputs: Mapping[OutputTag[Any] | None, DeclaredSchema]
    max_parallelism: int
    _inputs: Sequence[LocalInput]
    row_schemas: Sequence[DeclaredSchema | None] = ()
    """The schemas of the inputs whose records may be in flight, as far as they are declared."""
    key_serializer: TypeSerializer[Any] | None = None
    _columns: KeyColumns | None = None
    _writers: Mapping[OutputTag[Any] | None, RowWriter] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._writers = {tag: RowWriter(schema.arrow, _place_of(self.uid, tag)) for tag, schema in self.outputs.items()}

    @property
    def uid(self) -> str:
        """The uid of the operator."""
        return self.node.uid

    @property
    def knows_keys(self) -> bool:
        """Whether the types of the keys are known, from a schema or from a record."""
        return self._columns is not None

    def make_function(self) -> Any:
        """A function of a subtask's own."""
        return copy.deepcopy(self.node.function)

    def learn_keys(self, firsts: Callable[[int], Sequence[Any]]) -> None:
        """Takes the types of the keys from the schemas of the inputs, or from the first record of one, as it is given.

        Raises `JobDefinitionError` if the inputs differ.
        """
        types = known_key_types(self.uid, self._inputs, firsts)
        if types is not None:
            self.key_serializer = key_serializer_for(types, self.uid)
            self._columns = KeyColumns(types, self.max_parallelism)

    def partitioned(self, input_index: int, stream: LocalStream, parallelism: int) -> Sequence[ObjectBatch]:
        """What each subtask is given of a stream of an input, in order; where that has keys, their types are known."""
        return self._inputs[input_index].shares(stream, self._columns, parallelism)

    def is_keyed(self, input_index: int) -> bool:
        """Whether the records of an input go to the subtasks of their keys."""
        return self._inputs[input_index].is_keyed

    @property
    def is_ordered(self) -> bool:
        """Whether the records of an epoch are sorted: those of all inputs, by input, if those of one are to be."""
        return any(one.is_ordered for one in self._inputs)

    def in_order(self, input_index: int, batch: ObjectBatch) -> ObjectBatch:
        """The records of an input sorted by its columns of ``order_by``, if it has any; equal ones as they came."""
        return self._inputs[input_index].in_order(batch)

    def emitted_rows(self, tag: OutputTag[Any] | None, records: Sequence[Any]) -> list[Any]:
        """What a subtask emitted, as rows of the declared schema; `RowMismatchError` for what is none."""
        return rows_by(self._writers[tag], records, _place_of(self.uid, tag))

    def encoder(self, tag: OutputTag[Any] | None) -> RowEncoder:
        """What is done to the rows of an output when they are emitted."""
        return self._writers[tag].encoder


def rows_of(records: Sequence[Any], schema: DeclaredSchema, where: str | None = None) -> list[Any]:
    """Records as rows of a schema, checked as on Spark; ``where`` begins the messages of errors."""
    return rows_by(RowWriter(schema.arrow, where), records, where)


def _place_of(uid: str, tag: OutputTag[Any] | None) -> str:
    return place_of_output(uid, None if tag is None else tag.name)


def rows_by(writer: RowWriter, records: Sequence[Any], where: str | None) -> list[Any]:
    """Records as rows of the schema of a writer."""
    reader = RowReader(writer.schema, where)
    return [row for batch in writer.batches(records) for row in reader.rows(batch)]


@frozen
class PreparedGraph:
    """The operators of a job by uid, and what each stateless step does to each of its inputs."""

    operators: Mapping[str, LocalOperator]
    steps: Mapping[Node, Sequence[Step]]


def prepare_graph(graph: JobGraph, parallelism: int, max_parallelism: int) -> PreparedGraph:
    """Checks a job and asks its operators for their state.

    Raises `JobDefinitionError`, and `RowMismatchError` if the first element of a source is no row of its schema.
    """
    preparation = _Preparation(graph, parallelism, max_parallelism)
    for node in graph.nodes:
        _PREPARERS[type(node)](preparation, node)
    return PreparedGraph(preparation.operators, preparation.steps)


class _Preparation:
    """The nodes seen so far."""

    def __init__(self, graph: JobGraph, parallelism: int, max_parallelism: int) -> None:
        self._graph = graph
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._inputs: dict[StreamEdge, KnownStream] = {}
        self.operators: dict[str, LocalOperator] = {}
        self.steps: dict[Node, Sequence[Step]] = {}

    def source(self, node: SourceNode) -> None:
        source: ElementSource = node.source
        first = source.elements[:1]
        recast: Recast = list if source.schema is None else partial(rows_of, schema=source.schema)
        self._inputs[StreamEdge(node)] = KnownStream(source.schema, source.schema is not None, partial(recast, first))

    def dataframe(self, node: DataFrameNode) -> None:
        # Only Spark runs it. A job that is only described has it, and a name that is left has the same type.
        self._inputs[StreamEdge(node)] = KnownStream(self._inputs[node.inputs[0]].schema, is_rows=False)

    def record_step(self, node: RecordStepNode) -> None:
        given = self._inputs[node.inputs[0]]
        place = f"{node.method}()"
        results_of = partial(results_of_step, node.method, node.function)
        known = KnownStream(given.schema, is_rows=False)
        if node.method == FILTER:
            known = evolve(given, first=tuple)
        elif node.schema is not None:
            known = KnownStream(output_schema(node.schema, place, ""), is_rows=True)
        # Without a schema a function may return anything; a name that is left has the same type.
        self._inputs[StreamEdge(node)] = known
        if node.schema is None or known.schema is None:
            self.steps[node] = [lambda stream: stream.through(results_of)]
            return
        writer = RowWriter(known.schema.arrow, place)
        encoded = partial(results_of, encoder=writer.encoder)
        self.steps[node] = [lambda stream: stream.through(encoded).recast(partial(rows_by, writer, where=place))]

    def records(self, node: RecordsNode) -> None:
        given = self._inputs[node.inputs[0]]
        kind = record_type(node.record_class, AS_RECORDS)
        recast = _objects(kind, given)
        self.steps[node] = [lambda stream: stream.recast(recast)]
        schema = evolve(kind.schema, record_class=node.record_class)
        self._inputs[StreamEdge(node)] = KnownStream(schema, is_rows=True, first=lambda: recast(given.first()))

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
        if of_rows and of_rows[0].record_class is not None:
            # All are objects of one class.
            schema = of_rows[0]
        elif of_rows:
            schema = united_schema(of_rows)
            recasts = [_recast(one, schema) for one in inputs]
        elif len(guesses) == len(inputs):
            schema = united_guess(guesses)
        self.steps[node] = [partial(_recast_stream, recast) for recast in recasts]

        def first() -> Sequence[Any]:
            firsts = (recast(one.first()) for one, recast in zip(inputs, recasts, strict=True))
            return next(filter(None, firsts), ())

        self._inputs[StreamEdge(node)] = KnownStream(schema, bool(of_rows), first)

    def process(self, node: OperatorNode) -> None:
        streams = [self._inputs[edge] for edge in node.inputs]
        operator = _prepared(node, streams, self._graph.side_outputs(node), self._parallelism, self._max_parallelism)
        self.operators[node.uid] = operator
        for tag, schema in operator.outputs.items():
            self._inputs[StreamEdge(node, tag)] = KnownStream(schema, is_rows=True)

    def end(self, node: SinkNode) -> None:
        """Takes whatever comes."""


_PREPARERS: Final[Mapping[type, Callable[[_Preparation, Any], None]]] = {
    SourceNode: _Preparation.source,
    DataFrameNode: _Preparation.dataframe,
    RecordStepNode: _Preparation.record_step,
    RecordsNode: _Preparation.records,
    UnionNode: _Preparation.unite,
    TimestampsNode: _Preparation.timestamps,
    OperatorNode: _Preparation.process,
    SinkNode: _Preparation.end,
}


def _prepared(
    node: OperatorNode,
    streams: Sequence[KnownStream],
    tags: Sequence[OutputTag[Any]],
    parallelism: int,
    max_parallelism: int,
) -> LocalOperator:
    where = place_of_output(node.uid)
    schemas = [one.row_schema for one in streams]
    for schema in schemas:
        if schema is not None:
            check_not_reserved(schema.names, node.uid)
    outputs: dict[OutputTag[Any] | None, DeclaredSchema] = {None: output_schema(node.schema, where, OF_PROCESS)}
    for tag in tags:
        outputs[tag] = output_schema(tag.schema, place_of_output(node.uid, tag.name), OF_OUTPUT_TAG)
    states = registered_states(copy.deepcopy(node.function), node.uid, parallelism, schemas)
    # All copies of a broadcast state are at the same record, so none of its records is ever in flight.
    in_flight = [
        None if isinstance(given, BroadcastInput) else schema
        for given, schema in zip(node.operator_inputs, schemas, strict=True)
    ]
    operator = LocalOperator(node, states, outputs, max_parallelism, local_inputs(node, streams), in_flight)
    operator.learn_keys(lambda index: streams[index].first())
    return operator


def _recast_stream(recast: Recast, stream: LocalStream) -> LocalStream:
    return stream.recast(recast)


def _objects(kind: RecordType, given: KnownStream) -> Recast:
    """The function that makes objects of the records of a stream. Raises `JobDefinitionError` if they do not fit."""
    writer = RowWriter(kind.schema.arrow, AS_RECORDS)
    reader = RowReader(writer.schema, AS_RECORDS, record_class=kind.record_class)
    places: list[int] | None = None
    if given.row_schema is not None:
        names = columns_of_class(kind, given.row_schema, AS_RECORDS)
        places = list(map(given.row_schema.names.index, names))

    def objects(records: Sequence[Any]) -> list[Any]:
        rows = records if places is None else [tuple([row[place] for place in places]) for row in records]
        return [one for batch in writer.batches(rows) for one in reader.rows(batch)]

    return objects


def _recast(one: KnownStream, united: DeclaredSchema) -> Recast:
    if one.is_rows and one.schema is not None:
        return rows_as(one.schema, united)
    return partial(rows_of, schema=united, where="union()")
