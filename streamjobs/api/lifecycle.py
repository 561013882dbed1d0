"""What a function keeps for as long as its worker process lives: connections, models, clients.

    setup      once in each worker process and run, before the first open() there
      open     before the first record of an epoch in a subtask
        ...
      close    behind the last record of the epoch
    teardown   when the run is over for the process, or the process ends

A function travels to the workers by pickling, and every subtask and epoch has an object of its own. What setup() has
put into ``self`` is in all of them: the attributes of the function are then those that setup() has left. So an object
made in ``__init__`` or setup() is shared by what runs in the process, and one made in open() belongs to an epoch. A
function without a setup() of its own is a new object in every epoch.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol, runtime_checkable

__all__ = ["HasUserFunctions", "WorkerLifecycle", "user_functions_of"]


class WorkerLifecycle:
    """The base of functions: see the module."""

    def setup(self) -> Awaitable[None] | None:
        """Called once in a worker process and run, before the first `open`; never on the driver of a Spark job.

        It may be an ``async def``, and runs in the process's event loop then, which is that of async functions.

        What it raises fails the task, with the operator's uid in the message, and it is called again by the next one:
        it lets go itself of what it had made by then.
        """
        return None

    def teardown(self) -> Awaitable[None] | None:
        """Called on the function that `setup` was called on, once, when the process is done with the run.

        A process that is killed calls nothing, and Spark ends workers that it does not need so: what must not be left
        undone belongs into `close`. It may be an ``async def``. What is raised here is logged.
        """
        return None


@runtime_checkable
class HasUserFunctions(Protocol):
    """What stands in a node of the graph around functions of the user's: the settings of an operator."""

    @property
    def user_functions(self) -> tuple[Any, ...]:
        """The functions, always in the same order."""


def user_functions_of(function: object) -> tuple[Any, ...]:
    """The functions of the user's in what a node of the graph holds: itself, or those that it stands around."""
    return function.user_functions if isinstance(function, HasUserFunctions) else (function,)
