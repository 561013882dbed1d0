"""The graph of a job, as the program defines it.

Nodes are immutable and refer to earlier nodes, so there are no cycles, and the order of the program is topological. A
node reads *edges*: the output of another node, or one of its side outputs. Nodes that reach no sink are not part of the
job; for a stateful operator that is an error. Each input of an operator defines how its records are distributed: by
key, evenly, or all of them to every subtask. The class of the function determines the operator.

The uid of an operator identifies its state and is required. The uid of a sink identifies its staged data; a job's only
sink needs none. The uid of a source identifies its positions and event time; a job's only source needs none.

A *replayable source* (FLIP-27) consists of splits, such as files or partitions. Each split is read in order and can be
read again from any position that it has returned. A checkpoint stores the positions together with the state, so a
restarted job continues exactly after the records that its state contains. One reader reads all splits in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from enum import Enum
from typing import Any, ClassVar, Final, Protocol, cast, get_origin, runtime_checkable

import pyarrow as pa
from attrs import field, frozen

from snapshots.errors import format_value
from statebackend.streaming.errors import JobDefinitionError, UserFunctionError, describe_exception
from statebackend.streaming.output_tag import OutputTag, check_uid
from statebackend.streaming.rows.record_schema import annotated_return
from statebackend.streaming.watermark_strategy import WatermarkStrategy

__all__ = [
    "FILTER",
    "FLAT_MAP",
    "KEY_TYPES",
    "MAP",
    "ONE_COLUMN",
    "ONLY_SINK",
    "ONLY_SOURCE",
    "BroadcastInput",
    "DataFrameNode",
    "JobGraph",
    "KeyFunction",
    "KeyedInput",
    "MicroBatchSource",
    "Node",
    "NodeKind",
    "OperatorInput",
    "OperatorNode",
    "RecordStepNode",
    "RecordsNode",
    "ReplayableSource",
    "SinkNode",
    "SourceNode",
    "SplitRead",
    "SpreadInput",
    "StreamEdge",
    "StreamGraph",
    "TimestampsNode",
    "UnionNode",
    "name_of_input",
    "record_class_of",
    "source_of_timestamps",
    "upstream_of",
]


@frozen
class SplitRead:
    """Records of a split, the position after them, and whether the split has ended.

    On the local runtime, the records of a source with a schema may be a record batch.
    """

    records: Sequence[Any] | pa.RecordBatch
    position: int
    is_at_end: bool = False


@runtime_checkable
class ReplayableSource(Protocol):
    """A source that can be read again from a position. An exception ends the run.

    It may also have ``position_of_new_split(split)``. A run that restores positions calls it for each split without
    one, in place of the start position of `splits`, which may be the end of the split.

    It may also have ``split_identities()``. It returns a text for splits that exist now. The text changes if the split
    is deleted and created again. Checkpoints store it with the position, and another text is an error. It is called
    after `splits` and before each checkpoint.

    With ``reads_splits_one_by_one = True``, the local runtime reads each split to its end before the next one by name.
    Otherwise it reads a batch of each in turn.

    ``close()`` is called when a run ends.
    """

    def splits(self) -> Mapping[str, int]:
        """Return the splits that exist now, each with its start position. Called once per run.

        A split in the checkpoint continues from its position, and a new split from its start. A missing one is an
        error.
        """

    def read(self, split: str, position: int, max_records: int) -> SplitRead:
        """Return up to this many records of a split from a position on, always the same ones.

        Without records before the end, it is called again soon. It must not block for long.
        """


@runtime_checkable
class MicroBatchSource(ReplayableSource, Protocol):
    """A replayable source that the Spark runtime can read, too: the ends of a micro-batch are known before it is read.

    It is pickled into Spark's processes, and each task reads one split.
    """

    def position_of_new_split(self, split: str) -> int:
        """Return the first position of a split that is new for a job."""

    def end_positions(self) -> Mapping[str, int]:
        """Return the splits that exist now, each with the position after its last record."""

    def read_range(self, split: str, start: int, end: int) -> Iterator[Sequence[Any]]:
        """Yield all records of a split from a position up to another one, in lists. Waits for them."""


ONLY_SINK: Final = "sink"
"""The uid of a sink without an explicit one."""

ONLY_SOURCE: Final = "source"
"""The uid of a source without an explicit one."""

_ORDINALS: Final = ("first", "second", "third", "fourth", "fifth")


class NodeKind(Enum):
    """The kind of a node."""

    SOURCE = "source"
    STEP = "step"
    """Stateless: plans merge it into its readers."""
    OPERATOR = "operator"
    """Has state under its uid; see `statebackend.streaming.operators.operator_factories`."""
    SINK = "sink"


@frozen(eq=False)
class SourceNode:
    """A source of records; ``source`` belongs to the environment: a DataFrame, or elements."""

    kind: ClassVar = NodeKind.SOURCE
    inputs: ClassVar[tuple[StreamEdge, ...]] = ()

    source: Any
    uid: str | None = None


@frozen(eq=False)
class DataFrameNode:
    """A stateless step of Spark: a function from DataFrame to DataFrame."""

    kind: ClassVar = NodeKind.STEP

    inputs: tuple[StreamEdge]
    function: Callable[[Any], Any]


MAP: Final = "map"
FILTER: Final = "filter"
FLAT_MAP: Final = "flat_map"


@frozen(eq=False)
class RecordStepNode:
    """A stateless step that calls a function with each record: ``method`` is `MAP`, `FILTER` or `FLAT_MAP`.

    ``schema`` is that of the results, or None. A filter passes the records on and has none.
    """

    kind: ClassVar = NodeKind.STEP

    inputs: tuple[StreamEdge]
    method: str
    function: Callable[[Any], Any]
    schema: Any = None


@frozen(eq=False)
class RecordsNode:
    """Makes objects of a record class of the rows of a stream."""

    kind: ClassVar = NodeKind.STEP

    inputs: tuple[StreamEdge]
    record_class: type


@frozen(eq=False)
class UnionNode:
    """The union of several streams, in no order."""

    kind: ClassVar = NodeKind.STEP

    inputs: tuple[StreamEdge, ...]


@frozen(eq=False)
class TimestampsNode:
    """Assigns timestamps and produces watermarks. Its side output holds records beyond the future limit."""

    kind: ClassVar = NodeKind.STEP

    inputs: tuple[StreamEdge]
    strategy: WatermarkStrategy[Any]


@frozen
class KeyFunction:
    """A key column that a function computes from each record; ``type_name`` is its type, or None if it is unknown."""

    function: Callable[[Any], Any]
    type_name: str | None = None

    def __call__(self, record: Any) -> Any:
        try:
            return self.function(record)
        except Exception as error:
            raise UserFunctionError(
                f"key_by(), record {format_value(record, 200)}: the function raised {describe_exception(error)}"
            ) from error


KEY_TYPES: Final[Mapping[Any, str]] = {
    str: "string",
    bool: "boolean",
    int: "bigint",
    bytes: "binary",
    date: "date",
    datetime: "timestamp",
}
"""The column type of a key of each Python type."""

ONE_COLUMN: Final = "a function computes one column of a key, so pass several of them, as in key_by(first, second)"
"""The advice for a function that returns several values."""


def _as_keys(keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return key columns with each function as a `KeyFunction` of the type that it is annotated to return."""
    return tuple(_key_function(one) if callable(one) and not isinstance(one, KeyFunction) else one for one in keys)


def _key_function(function: Callable[[Any], Any]) -> KeyFunction:
    hint = annotated_return(function)
    if hint in (tuple, list) or get_origin(hint) in (tuple, list):
        raise JobDefinitionError(f"key_by() was given a function that returns {format_value(hint, 80)}; {ONE_COLUMN}")
    return KeyFunction(function, KEY_TYPES.get(hint))


@frozen(eq=False)
class KeyedInput:
    """An input that is distributed by key: all records of a key go to one subtask.

    ``keys`` are the key columns; ``order_by`` sorts the records of an epoch. With ``is_in_time_order`` they are sorted
    by event time first, if they have timestamps.
    """

    edge: StreamEdge
    keys: tuple[Any, ...] = field(converter=_as_keys)
    order_by: tuple[Any, ...] = ()
    is_in_time_order: bool = False


@frozen(eq=False)
class BroadcastInput:
    """An input whose records go to every subtask, in the same order."""

    edge: StreamEdge
    order_by: tuple[Any, ...] = ()


@frozen(eq=False)
class SpreadInput:
    """An input whose records are distributed evenly, for functions without keys."""

    edge: StreamEdge
    order_by: tuple[Any, ...] = ()


OperatorInput = KeyedInput | SpreadInput | BroadcastInput


@frozen(eq=False)
class OperatorNode:
    """A stateful operator.

    ``operator_inputs`` are in index order; the keys of all keyed inputs have the same types. Without inputs there is no
    keyed state. `statebackend.streaming.operators.operator_factories` knows the class of ``function``.
    """

    kind: ClassVar = NodeKind.OPERATOR

    operator_inputs: tuple[OperatorInput, ...]
    uid: str
    name: str
    function: Any
    schema: Any

    @property
    def inputs(self) -> tuple[StreamEdge, ...]:
        """The edges of its inputs, in order."""
        return tuple(one.edge for one in self.operator_inputs)

    @property
    def input_order(self) -> tuple[int, ...]:
        """The order in which an epoch processes the inputs: broadcast inputs, such as rules, come first."""
        inputs = self.operator_inputs
        return tuple(sorted(range(len(inputs)), key=lambda index: not isinstance(inputs[index], BroadcastInput)))


@frozen(eq=False)
class SinkNode:
    """A sink."""

    kind: ClassVar = NodeKind.SINK

    inputs: tuple[StreamEdge]
    uid: str
    sink: Any


Node = SourceNode | DataFrameNode | RecordStepNode | RecordsNode | UnionNode | TimestampsNode | OperatorNode | SinkNode


@frozen
class StreamEdge:
    """The output of a node or, with a tag, one of its side outputs."""

    node: Node
    tag: OutputTag[Any] | None = field(default=None)


def upstream_of(edges: Iterable[StreamEdge]) -> frozenset[Node]:
    """All nodes upstream of these edges: sources, steps and operators."""
    seen: set[Node] = set()
    pending = [edge.node for edge in edges]
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            pending += [edge.node for edge in node.inputs]
    return frozenset(seen)


@frozen
class JobGraph:
    """A complete job: the nodes that lead to its sinks, in topological order."""

    nodes: tuple[Node, ...]

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        """The sources, in the order of the program."""
        return cast("tuple[SourceNode, ...]", self._of_kind(NodeKind.SOURCE))

    @property
    def source_uids(self) -> tuple[str, ...]:
        """The uids of the sources in checkpoints, in program order."""
        return tuple(ONLY_SOURCE if one.uid is None else one.uid for one in self.sources)

    @property
    def operators(self) -> tuple[OperatorNode, ...]:
        """The stateful operators, in the order of the program."""
        return cast("tuple[OperatorNode, ...]", self._of_kind(NodeKind.OPERATOR))

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        """The sinks, in the order of the program."""
        return cast("tuple[SinkNode, ...]", self._of_kind(NodeKind.SINK))

    def edges_from(self, node: Node) -> tuple[StreamEdge, ...]:
        """The edges read from a node, once per reader."""
        return tuple(edge for reader in self.nodes for edge in reader.inputs if edge.node is node)

    def side_outputs(self, node: Node) -> tuple[OutputTag[Any], ...]:
        """The side outputs of a node that are read, by name.

        Raises `JobDefinitionError` if one is read with two schemas.
        """
        by_name: dict[str, OutputTag[Any]] = {}
        for edge in self.edges_from(node):
            if edge.tag is None:
                continue
            known = by_name.setdefault(edge.tag.name, edge.tag)
            if known.schema != edge.tag.schema:
                raise JobDefinitionError(
                    f"the side output {known.name!r} is read with the schema {format_value(known.schema, 80)} and with "
                    f"{format_value(edge.tag.schema, 80)}; use one OutputTag for both"
                )
        return tuple(by_name[name] for name in sorted(by_name))

    def _of_kind(self, kind: NodeKind) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.kind is kind)


class StreamGraph:
    """The nodes of one environment, checked as they are added."""

    def __init__(self) -> None:
        # A dict keeps the order; nodes are compared by identity.
        self._nodes: dict[Node, None] = {}
        self._operators: dict[str, OperatorNode] = {}
        self._sinks: dict[str, SinkNode] = {}

    @property
    def operators(self) -> tuple[OperatorNode, ...]:
        """The stateful operators, in the order of the program."""
        return tuple(self._operators.values())

    def add(self, node: Node) -> StreamEdge:
        """Add a source or a step; returns its output.

        Raises `JobDefinitionError` for a stream of another environment.
        """
        for edge in node.inputs:
            if edge.node not in self._nodes:
                raise JobDefinitionError(
                    "a stream of another environment cannot be read here: a job is built by one environment, so make "
                    "all its sources with the same one"
                )
        self._nodes[node] = None
        return StreamEdge(node)

    def add_source(self, node: SourceNode) -> StreamEdge:
        """Add a source. Raises `JobDefinitionError` for a duplicate or invalid uid."""
        if node.uid is not None:
            check_uid("source", "from_dataframe or from_elements", "how far it is read", node.uid)
            if any(isinstance(known, SourceNode) and known.uid == node.uid for known in self._nodes):
                raise JobDefinitionError(
                    f"two sources have the uid {node.uid!r}; their positions cannot be distinguished, so give "
                    f"one of them another uid"
                )
        return self.add(node)

    def add_operator(self, node: OperatorNode) -> StreamEdge:
        """Add an operator; returns its output.

        Raises `JobDefinitionError` for a missing, duplicate or invalid uid, and for inputs with different numbers of
        key columns.
        """
        check_uid(f"operator {node.name}", "process", "its state", node.uid)
        _check_keys(node)
        if node.uid in self._operators:
            raise JobDefinitionError(
                f"two operators have the uid {node.uid!r}: {self._operators[node.uid].name} and {node.name}; "
                f"their state cannot be distinguished, so give one of them another uid"
            )
        edge = self.add(node)
        self._operators[node.uid] = node
        return edge

    def add_sink(self, node: SinkNode) -> None:
        """Add a sink. Raises `JobDefinitionError` for a duplicate or invalid uid.

        Only one sink may have the default uid `ONLY_SINK`.
        """
        name = type(node.sink).__name__
        check_uid(f"sink {name}", "sink_to", "what it has staged", node.uid)
        if node.uid in self._sinks:
            other = type(self._sinks[node.uid].sink).__name__
            which = "were given no uid" if node.uid == ONLY_SINK else f"have the uid {node.uid!r}"
            raise JobDefinitionError(
                f"two sinks {which}: {other} and {name}; their staged rows cannot be distinguished after a crash, "
                f"so pass sink_to(..., uid='a-name-that-never-changes')"
            )
        if any(node.sink is known.sink for known in self._sinks.values()):
            raise JobDefinitionError(
                f"the same {name} was given to sink_to twice, and a sink takes each epoch once: unite the streams with "
                f"union() before it, or make a sink for each"
            )
        self.add(node)
        self._sinks[node.uid] = node

    def job(self) -> JobGraph:
        """Return the complete job. Raises `JobDefinitionError` if the graph is incomplete."""
        if not self._sinks:
            raise JobDefinitionError("the job has no sink: end the chain with sink_to(...)")
        leading = _upstream_of(self._sinks.values())
        missing = [uid for uid, operator in self._operators.items() if operator not in leading]
        if missing:
            raise JobDefinitionError(
                f"no sink receives what these operators emit: {', '.join(missing)}; chain them before the sink"
            )
        graph = JobGraph(tuple(node for node in self._nodes if node in leading))
        _check_source_uids(graph, self._operators)
        return graph


def source_of_timestamps(edge: StreamEdge) -> SourceNode:
    """Return the source whose records get their timestamps at this edge.

    Raises `JobDefinitionError` after an operator or a union, and for records that have timestamps already.
    """
    node, tag = edge.node, edge.tag
    while isinstance(node, (DataFrameNode, RecordStepNode, RecordsNode)):
        node, tag = node.inputs[0].node, node.inputs[0].tag
    if isinstance(node, SourceNode):
        return node
    if isinstance(node, TimestampsNode):
        given = "its records have timestamps already, by this method or by withWatermark on the frame of the source"
        what = given if tag is None else "these records are set aside"
    else:
        what = f"its input is {'a union' if isinstance(node, UnionNode) else f'the operator {node.uid!r}'}"
    raise JobDefinitionError(
        f"assign_timestamps_and_watermarks(): {what}; give each source its timestamps once, right after the "
        f"source and before operators and unions"
    )


def record_class_of(edge: StreamEdge) -> type | None:
    """Return the class of the records of a stream, or None if they are rows."""
    node = edge.node
    while isinstance(node, (TimestampsNode, UnionNode)) or (isinstance(node, RecordStepNode) and node.method == FILTER):
        node = node.inputs[0].node
    return node.record_class if isinstance(node, RecordsNode) else None


def has_timestamps(edge: StreamEdge) -> bool:
    """Whether all sources that lead to this edge have timestamps."""
    waiting: list[Node] = [edge.node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, SourceNode):
            return False
        if not isinstance(node, TimestampsNode):
            waiting.extend(read.node for read in node.inputs)
    return True


def _upstream_of(nodes: Iterable[Node]) -> Collection[Node]:
    found: set[Node] = set()
    waiting: list[Node] = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(edge.node for edge in node.inputs)
    return found


def name_of_input(index: int) -> str:
    """The name of an operator's input in errors, by its index from 0."""
    return f"its {_ORDINALS[index]} input" if index < len(_ORDINALS) else f"its input number {index + 1}"


def _check_keys(node: OperatorNode) -> None:
    columns = {index: one.keys for index, one in enumerate(node.operator_inputs) if isinstance(one, KeyedInput)}
    first = min(columns, default=0)
    for other in columns:
        if len(columns[other]) != len(columns[first]):
            raise JobDefinitionError(
                f"operator {node.uid!r}: {name_of_input(first)} has a key of {len(columns[first])} columns and "
                f"{name_of_input(other)} one of {len(columns[other])}; records of both meet only under keys of the "
                f"same types"
            )


def _check_source_uids(graph: JobGraph, operators: Mapping[str, OperatorNode]) -> None:
    for position, (node, uid) in enumerate(zip(graph.sources, graph.source_uids, strict=True), start=1):
        if node.uid is None and len(graph.sources) > 1:
            raise JobDefinitionError(
                f"the job has {len(graph.sources)} sources, and source {position} has no uid. Pass from_dataframe or "
                f"from_elements(..., uid='a-name-that-never-changes'): checkpoints store its position and event time "
                f"under the uid. If it was the only source of the job so far, its uid in checkpoints is {ONLY_SOURCE!r}"
            )
        if uid in operators:
            raise JobDefinitionError(
                f"a source and the operator {operators[uid].name} have the uid {uid!r}; give one of them another uid. "
                f"A source without a uid has the uid {ONLY_SOURCE!r}"
            )
