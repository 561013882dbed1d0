"""How an aggregating state folds what is added to it; the names are Flink's.

The *accumulator* is what is stored. It may be of a mutable type: a function may change the accumulator it is given and
return it, or return another one; what counts is what it returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741
A = TypeVar("A")
O = TypeVar("O")  # noqa: E741

ReduceFunction = Callable[[T, T], T]
"""Combines two values into one of the same type; must be associative if namespaces are merged."""


class AggregateFunction(ABC, Generic[I, A, O]):
    """Folds values of type ``I`` into an accumulator of type ``A``, from which a result of type ``O`` follows."""

    @abstractmethod
    def create_accumulator(self) -> A:
        """An accumulator to which nothing was added; called for the first value of every key."""

    @abstractmethod
    def add(self, value: I, accumulator: A) -> A:
        """The accumulator with the value added: the one given, changed, or another."""

    @abstractmethod
    def get_result(self, accumulator: A) -> O:
        """The result of what was added; called at every read."""

    def merge(self, left: A, right: A) -> A:
        """One accumulator for what was added to both; needed only where namespaces are merged (session windows)."""
        raise NotImplementedError(f"{type(self).__name__} has no merge(), which merging namespaces needs")
