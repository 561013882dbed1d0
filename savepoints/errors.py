"""What can be asked of a savepoint that it has not."""

from __future__ import annotations

from checkpointing.errors import SavepointError

__all__ = ["UnknownOperatorError", "UnknownStateError"]


class UnknownOperatorError(SavepointError, LookupError):
    """There is no state of an operator of that uid; the message names those there are."""


class UnknownStateError(SavepointError, LookupError):
    """The operator has no state of that name; the message names those it has."""
