"""The graph of a job: what the program has chained together, before anything runs.

Nodes are immutable and point upstream. A uid names the state of an operator for ever, so it must be given, and only
once. The graph of a job has one sink: an epoch runs exactly one Spark action, which is one pass over every operator.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, Final

from attrs import field, frozen

from streamjobs.api.functions import KeyedProcessFunction
from streamjobs.errors import JobDefinitionError
from streamjobs.runtime.user_errors import shown

MAX_UID_CHARACTERS: Final = 200
"""Most characters of the uid of an operator."""


@frozen
class SourceNode:
    """Where records come from; ``source`` is the environment's own: a DataFrame, or elements."""

    source: Any = field(eq=False)

    upstream = None


@frozen
class TransformNode:
    """A stateless step, in the environment's own terms."""

    upstream: Node
    function: Callable[[Any], Any] = field(eq=False)


@frozen
class KeyedProcessNode:
    """A keyed stateful operator."""

    upstream: Node
    uid: str
    name: str
    function: KeyedProcessFunction[Any, Any, Any] = field(eq=False)
    keys: tuple[Any, ...] = field(eq=False)
    order_by: tuple[Any, ...] = field(eq=False)
    schema: Any = field(eq=False)


@frozen
class SinkNode:
    """Where records go."""

    upstream: Node
    sink: Any = field(eq=False)


Node = SourceNode | TransformNode | KeyedProcessNode | SinkNode


class StreamGraph:
    """The operators and sinks of one environment, checked as they are added."""

    def __init__(self) -> None:
        self._operators: dict[str, KeyedProcessNode] = {}
        self._sinks: list[SinkNode] = []

    @property
    def operators(self) -> tuple[KeyedProcessNode, ...]:
        """The stateful operators, in the order of the program."""
        return tuple(self._operators.values())

    def add_operator(self, node: KeyedProcessNode) -> KeyedProcessNode:
        """Adds an operator; raises `JobDefinitionError` for a uid that is missing, doubled or cannot be written."""
        _check_uid(node.name, node.uid)
        if node.uid in self._operators:
            raise JobDefinitionError(
                f"two operators have the uid {node.uid!r}: {self._operators[node.uid].name} and {node.name}; "
                f"their state could not be told apart, so give one of them another uid"
            )
        self._operators[node.uid] = node
        return node

    def add_sink(self, node: SinkNode) -> None:
        """Adds the sink; raises `JobDefinitionError` for a second one."""
        if self._sinks:
            raise JobDefinitionError(
                "a job has one sink: an epoch is one pass over all operators. "
                "To write to two places, use a sink function that writes both from one cached frame"
            )
        self._sinks.append(node)

    def pipeline(self) -> Sequence[Node]:
        """The nodes from the source to the sink; raises `JobDefinitionError` if that is no whole job."""
        if not self._sinks:
            raise JobDefinitionError("the job has no sink: end the chain with sink_to(...)")
        nodes: list[Node] = []
        node: Node | None = self._sinks[0]
        while node is not None:
            nodes.append(node)
            node = node.upstream
        nodes.reverse()
        if not any(isinstance(node, KeyedProcessNode) for node in nodes):
            raise JobDefinitionError(
                "the job has no operator with state between its source and its sink: chain key_by(...).process(...), "
                "or run it as a plain Spark query, which needs no job directory"
            )
        missing = [operator.uid for operator in self.operators if operator not in nodes]
        if missing:
            raise JobDefinitionError(
                f"no sink receives what these operators emit: {', '.join(missing)}; chain them before the sink"
            )
        return nodes


def _check_uid(name: str, uid: object) -> None:
    if not isinstance(uid, str) or not uid.strip():
        raise JobDefinitionError(
            f"the operator {name} has no uid: pass process(..., uid='a-name-that-never-changes'), "
            f"under which its state is found again in savepoints"
        )
    if len(uid) > MAX_UID_CHARACTERS:
        raise JobDefinitionError(
            f"the uid of the operator {name} has {len(uid)} characters, and {MAX_UID_CHARACTERS} are the most: "
            f"{shown(uid, 40)}"
        )
    # It stands in file names, in messages of one line and in metadata, as UTF-8.
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in uid):
        raise JobDefinitionError(
            f"the uid {uid!r} of the operator {name} has control characters, such as NUL or a line break, or half of a "
            f"surrogate pair; leave them out"
        )
