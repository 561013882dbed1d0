"""Runs a schedule of a job from its first run to its last, and compares the output with its model."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Sequence

from statebackend.checkpoint.errors import JobDirectoryLockedError, StorageError
from verification.simulation.host.chance import seeded_names
from verification.simulation.host.disk import Process
from verification.simulation.host.faults import ProcessDied, TaskFailed
from verification.simulation.host.machine import Machine
from verification.simulation.jobs.plan import JobPlan, Shape
from verification.simulation.jobs.program import Row, expected
from verification.simulation.jobs.run import DriverDied, JobHistory, JobRun, JobStopped
from verification.simulation.violation import Violation, require_that

__all__ = ["run_job"]

_MOST_LIVES = 20


def run_job(plan: JobPlan, machine: Machine) -> None:
    """Run a schedule. Raises `Violation` if a promise is broken."""
    history = JobHistory()
    machine.disk.on_other_driver = lambda kind, process: _second_driver(plan, machine, history)
    with seeded_names(plan.seed, machine.clock):
        for life in range(_MOST_LIVES):
            process = Process(f"driver {life}")
            run = JobRun(plan, machine, history, process, life)
            machine.trace.add(f"--- life {life}")
            try:
                run.run()
                break
            except (DriverDied, JobStopped, ProcessDied) as error:
                machine.trace.add(f"--- over: {error!r}")
            except Violation:
                raise
            except Exception as error:
                if not _is_fault(error):
                    raise
                machine.trace.add(f"--- over: {error}")
            if process.lost_power:
                machine.disk.lose_power()
        else:
            raise Violation("the job terminates: it fails again and again")
        _check_output(plan, run.outputs)
        if plan.has_staged_sinks:
            _check_output(plan, [one.shown for _, one in sorted(history.systems.items())])
        machine.faults.end()
        JobRun(plan, machine, history, Process("last"), life).check_start()


def _second_driver(plan: JobPlan, machine: Machine, history: JobHistory) -> None:
    """Start another driver while the first one runs: it must be rejected and change nothing."""
    before = dict(machine.disk.files)
    second = JobRun(plan, machine, history, Process("second driver"), 0)
    try:
        second.run()
    except JobDirectoryLockedError:
        require_that(machine.disk.files == before, "a driver that is rejected changes nothing")
        return
    raise Violation("a second driver is rejected while the first one lives")


def _is_fault(error: BaseException | None) -> bool:
    """Return whether an error is the effect of a fault: a failed task or a failed storage operation."""
    while error is not None:
        if isinstance(error, TaskFailed | ProcessDied) or (isinstance(error, OSError) and error.errno == errno.EIO):
            return True
        if isinstance(error, StorageError) and error.__cause__ is None:
            return False
        error = error.__cause__ or error.__context__
    return False


def _check_output(plan: JobPlan, outputs: Sequence[Sequence[Row]]) -> None:
    for sink, (out, model) in enumerate(zip(outputs, expected(plan), strict=True)):
        if plan.is_exactly_once:
            counted = Counter(out)
            require_that(
                counted == model,
                f"exactly once: sink {sink} has {dict(counted - model)} too often, and lacks {dict(model - counted)}",
            )
        else:
            _check_at_least_once(plan, sink, Counter(out), model)


def _check_at_least_once(plan: JobPlan, sink: int, out: Counter[Row], model: Counter[Row]) -> None:
    """Check an output in which records may count twice: every key is there, and every id that is not summed."""
    is_sum = plan.shape is Shape.LONG_CHAIN or (plan.shape is Shape.TWO_SINKS and sink == 1)
    known, wanted = {(key, one) for key, one, _ in out}, {(key, one) for key, one, _ in model}
    lacking = {key for key, _ in wanted} - {key for key, _ in known} if is_sum else wanted - known
    require_that(not lacking, f"at least once: sink {sink} lacks {lacking}")
