"""Running the tasks of a plan: one after the other in this process, or in several processes of their own.

Processes are started anew (`spawn`) and get their tasks pickled, so the functions of a plan must then be importable: of
a module, not of a script's body, and no lambdas. A failure in one ends all. They tell of their progress when a task has
ended.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from savepoints.writing.errors import PlanError
from statebackend.api.progress import ProgressListener

__all__ = ["TaskRunner"]


class TaskRunner:
    """See the module. A context: behind it no process is left."""

    def __init__(self, processes: int, listener: ProgressListener) -> None:
        if type(processes) is not int or processes < 1:
            raise PlanError(f"processes is {processes!r}; it must be a whole number from 1 on")
        self._listener = listener
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None
        if processes > 1:
            self._pool = concurrent.futures.ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))

    def __enter__(self) -> TaskRunner:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def run(self, tasks: Sequence[Any]) -> list[Any]:
        """What the tasks return, in their order. Raises what the first that fails raises."""
        if self._pool is None:
            return [task.run(self._listener) for task in tasks]
        results = []
        for result, told in self._in_processes(self._pool, tasks):
            results.append(result)
            for one in told:
                self._listener(one)
        return results

    def _in_processes(self, pool: concurrent.futures.ProcessPoolExecutor, tasks: Sequence[Any]) -> Iterator[Any]:
        try:
            # A pool tells of what cannot be pickled only when it is waited for, and not well.
            for task in tasks:
                pickle.dumps(task)
        except Exception as error:
            raise PlanError(
                f"a task cannot go to another process: {error}. Give the plan functions of a module that can be "
                f"imported, and entries as lists, or use one process"
            ) from error
        try:
            yield from pool.map(_ran, tasks)
        except BrokenProcessPool as error:
            raise PlanError(
                "a process that carried out a part of the plan has ended before it: it was killed, as by a system that "
                "runs out of memory, or a function of the plan ended it. Nothing was written"
            ) from error


def _ran(task: Any) -> tuple[Any, list[Any]]:
    last: dict[Any, Any] = {}

    def keep(one: Any) -> None:
        last[one.operation, one.operator_uid, one.state_name, one.subtask_index] = one

    return task.run(keep), list(last.values())
