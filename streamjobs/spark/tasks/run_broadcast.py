"""What goes out to the workers once per run of a job: the functions, and the modules and classes of the program.

It is a broadcast variable of Spark, which each executor fetches once and the driver destroys at the end of the run. A
worker keeps the parts of the last few runs unpickled, for Spark may take a broadcast away from a worker between two
tasks.

Spark's workers collect cyclic garbage after every task, and look at every object that they have for it: modules,
classes and functions, some 50 ms of processor time for a task that itself takes 20. So when a worker gets to know a
run, what is there by then is set aside from the collector, until the next run comes.
"""

from __future__ import annotations

import contextlib
import gc
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

from attrs import frozen
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import Broadcast, SparkContext

from streamjobs.spark.tasks.partition_task import OperatorTask
from streamjobs.spark.tasks.program_modules import ProgramModules
from streamjobs.spark.tasks.program_pickles import pickled, unpickled

KEPT_RUNS: Final = 4
"""Runs whose parts a worker keeps: workers outlive jobs, and some serve several at a time."""

_parts_by_run: OrderedDict[str, RunParts] = OrderedDict()
"""A cache of this worker: what is in it is what the run's broadcast holds."""


@frozen
class RunParts:
    """What the program has registered, and the tasks of all operators by uid."""

    program: ProgramModules
    operators: Mapping[str, OperatorTask]


@frozen
class RunReference:
    """Leads a task to the parts of its run; picklable, and small."""

    run_id: str
    broadcast: Broadcast[tuple[bytes, bytes]]

    def parts(self) -> RunParts:
        """The parts of the run, on a worker. What the program has registered is known from here on.

        Raises whatever unpickling them does: `ModuleNotFoundError` for a module that is not on this worker.
        """
        parts = _parts_by_run.get(self.run_id)
        if parts is None:
            modules, operators = self.broadcast.value
            program: ProgramModules = unpickled(modules)
            # First: unpickling the operators may already need a class that is found by its name.
            program.install()
            parts = _parts_by_run[self.run_id] = RunParts(program, unpickled(operators))
            if len(_parts_by_run) > KEPT_RUNS:
                _parts_by_run.popitem(last=False)
            _set_aside()
        elif self.run_id != next(reversed(_parts_by_run)):
            # The run before may know another class under the same name, such as one of a cell that was run again.
            parts.program.install()
            _parts_by_run.move_to_end(self.run_id)
        return parts


def _set_aside() -> None:
    """Keeps the collector from looking at what is there and is no garbage."""
    # What was set aside before may be garbage by now: parts of runs that are kept no more.
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class RunBroadcast:
    """The driver's side: exists from the start of a run to `destroy`."""

    def __init__(self, context: SparkContext, run_id: str, operators: Iterable[OperatorTask]) -> None:
        """Sends nothing yet; Spark's executors fetch it with their first task."""
        by_uid = {operator.parts.operator_uid: operator for operator in operators}
        modules, payload = pickled(ProgramModules.of_this_process()), pickled(by_uid)
        self.reference = RunReference(run_id, context.broadcast((modules, payload)))
        self._is_destroyed = False

    def destroy(self) -> None:
        """Removes it from the driver's and all executors' disks and memory; may be called again, from any thread."""
        if self._is_destroyed:
            return
        self._is_destroyed = True
        # A session that has been stopped has taken it along.
        with contextlib.suppress(Py4JError, OSError, AttributeError):
            self.reference.broadcast.destroy()
