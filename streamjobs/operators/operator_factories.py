"""Which operator runs a node of the graph: one entry for each kind of node that has state.

A runtime sends the kind and the user's function to its subtasks, and asks here for the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from streamjobs.api.stream_graph import KeyedProcessNode
from streamjobs.operators.keyed_process import KeyedProcessOperator
from streamjobs.operators.operator import Operator

__all__ = ["OPERATORS", "OperatorFactory", "operator_factory"]

OperatorFactory = Callable[[Any, str], Operator]
"""Makes an operator of a function and the uid of its node; importable by name, so that it can be sent to workers."""

OPERATORS: Final[Mapping[type, OperatorFactory]] = {
    KeyedProcessNode: KeyedProcessOperator,
}


def operator_factory(node: object) -> OperatorFactory:
    """What makes the operator of a node; `KeyError` if nodes of its kind have none."""
    return OPERATORS[type(node)]
