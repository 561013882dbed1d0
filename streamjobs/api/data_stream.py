"""The chain a program is written in: ``env.from_...(...).key_by(...).process(...).sink_to(...)``.

It is the same for every environment; only what a source, a key and a sink are differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamjobs.api.functions import KeyedProcessFunction
from streamjobs.api.stream_graph import KeyedProcessNode, Node, SinkNode, StreamGraph, TransformNode
from streamjobs.errors import JobDefinitionError
from streamjobs.runtime.user_errors import shown


class DataStream:
    """A stream of records."""

    def __init__(self, graph: StreamGraph, node: Node) -> None:
        self._graph = graph
        self._node = node

    def key_by(self, *keys: Any) -> KeyedStream:
        """Partitions the stream by one or more columns, given by name or, on Spark, as expressions.

        With several columns the key is a tuple. A record whose key is null is an error.
        """
        if not keys:
            raise JobDefinitionError("key_by needs at least one column")
        if any(isinstance(key, (list, tuple)) for key in keys):
            raise JobDefinitionError("key_by takes its columns one by one: key_by('a', 'b'), not key_by(['a', 'b'])")
        return KeyedStream(self._graph, self._node, keys)

    def transform(self, function: Callable[[Any], Any]) -> DataStream:
        """A stateless step: on Spark from DataFrame to DataFrame, in-process from record to an iterable of records."""
        return DataStream(self._graph, TransformNode(self._node, function))

    def sink_to(self, sink: Any) -> None:
        """Ends the chain: where the records go."""
        self._graph.add_sink(SinkNode(self._node, sink))


class KeyedStream:
    """A stream partitioned by key."""

    def __init__(self, graph: StreamGraph, node: Node, keys: tuple[Any, ...]) -> None:
        self._graph = graph
        self._node = node
        self._keys = keys

    def process(
        self,
        function: KeyedProcessFunction[Any, Any, Any],
        *,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        order_by: Any = (),
    ) -> DataStream:
        """Applies a function with state per key.

        ``uid`` names the operator's state for ever. ``schema`` is that of the emitted records, as DDL
        (``"tailnum string, flights bigint"``) or, on Spark, a ``StructType``. ``order_by`` names columns by which the
        records of a key are sorted within each epoch; without it their order is that in which they arrive, which on
        Spark a shuffle does not define.
        """
        if not isinstance(function, KeyedProcessFunction):
            given: object = function
            what = f"the class {given.__name__}; make an instance" if isinstance(given, type) else shown(given, 80)
            raise JobDefinitionError(f"process() takes an instance of a KeyedProcessFunction, not {what}")
        columns = tuple(order_by) if isinstance(order_by, (list, tuple)) else (order_by,)
        node = KeyedProcessNode(self._node, uid, name or type(function).__name__, function, self._keys, columns, schema)
        return DataStream(self._graph, self._graph.add_operator(node))
