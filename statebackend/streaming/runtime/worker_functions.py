"""Keeps the user functions of a process after setup(), and checks that the copies of broadcast state are equal.

setup() runs once per process, run and operator. A task gets its own unpickled object from `WorkerFunctions.function`,
with the attributes that setup() created (`statebackend.streaming.functions`). The original is kept until one of these
events, which calls teardown():

    another run of the same job starts        a job has one run at a time
    there are too many jobs                   the least recently used is removed
    `close`                                   called by the runtime, or at the end of the process

A forked process starts without functions, because connections do not survive a fork. The object is not thread-safe: a
Spark worker runs one task at a time, and each run of the local runtime has its own `WorkerFunctions`.

Every subtask builds its copy of broadcast state from the same records in the same order. A function that uses other
data (a clock, a random number, its subtask index) builds different copies. After a rescale a key could then see any of
them. So the digests of the copies are compared at every barrier, without reading the contents. State with reserved
names is not checked.
"""

from __future__ import annotations

import atexit
import inspect
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from types import MemberDescriptorType
from typing import Any, Final

from attrs import frozen

from snapshots.loggers import logger_of
from statebackend.checkpoint.coordinator.pending_checkpoint import CompletedCheckpoint
from statebackend.checkpoint.state_handles import SubtaskState
from statebackend.state.operator_state_descriptors import OperatorStateMode
from statebackend.state.operator_state_handles import OperatorStateMeta, decode_operator_state
from statebackend.streaming.errors import EpochError, StreamJobError, UserFunctionError, describe_exception
from statebackend.streaming.functions import WorkerLifecycle, user_functions_of
from statebackend.streaming.operators.async_requests import worker_loop
from statebackend.streaming.operators.stateful_processor import RESERVED_PREFIX

KEPT_JOBS: Final = 4
"""The maximum number of jobs for which a process keeps functions. A worker process may serve several jobs."""

_logger = logger_of(__name__)


@frozen
class RunIdentity:
    """A run of a job."""

    job_id: str
    run_id: str


class WorkerFunctions:
    """The functions of a process for which setup() has run."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, tuple[RunIdentity, dict[str, tuple[Any, ...]]]] = OrderedDict()
        self._process_id = os.getpid()

    def function(self, run: RunIdentity, operator_uid: str, make_function: Callable[[], Any]) -> Any:
        """Return a new function of the operator after its setup(). Raises `UserFunctionError` if setup() fails."""
        made = make_function()
        functions = user_functions_of(made)
        if not any(map(_has_lifecycle, functions)):
            return made
        kept = self._functions_of_run(run)
        if operator_uid not in kept:
            # The cached functions are never returned: they would keep what open() creates.
            kept[operator_uid] = self._set_up(operator_uid, user_functions_of(make_function()))
        for function, origin in zip(functions, kept[operator_uid], strict=True):
            if _has_lifecycle(origin):
                _copy_attributes(function, origin)
        return made

    def close(self) -> None:
        """Tear down everything. Does nothing when called again."""
        self._forget_after_fork()
        for job_id in list(self._runs):
            self._tear_down(job_id)

    def _functions_of_run(self, run: RunIdentity) -> dict[str, tuple[Any, ...]]:
        self._forget_after_fork()
        if run.job_id in self._runs and self._runs[run.job_id][0] != run:
            self._tear_down(run.job_id)
        if run.job_id not in self._runs:
            while len(self._runs) >= KEPT_JOBS:
                self._tear_down(next(iter(self._runs)))
            self._runs[run.job_id] = (run, {})
        self._runs.move_to_end(run.job_id)
        return self._runs[run.job_id][1]

    def _forget_after_fork(self) -> None:
        if self._process_id != os.getpid():
            self._runs.clear()
            self._process_id = os.getpid()

    def _set_up(self, operator_uid: str, functions: tuple[Any, ...]) -> tuple[Any, ...]:
        done: list[Any] = []
        try:
            for function in functions:
                if _has_lifecycle(function):
                    _call(function.setup)
                    done.append(function)
        except Exception as error:
            _tear_down_all(operator_uid, reversed(done))
            if isinstance(error, StreamJobError):
                raise
            raise UserFunctionError(f"operator {operator_uid!r}: setup raised {describe_exception(error)}") from error
        return functions

    def _tear_down(self, job_id: str) -> None:
        _, operators = self._runs.pop(job_id)
        for operator_uid, functions in reversed(operators.items()):
            _tear_down_all(operator_uid, reversed([one for one in functions if _has_lifecycle(one)]))


def functions_of_this_process() -> WorkerFunctions:
    """Return the functions of this worker process. They are torn down when it exits normally."""
    return _of_this_process


_of_this_process: Final = WorkerFunctions()
atexit.register(_of_this_process.close)


def _has_lifecycle(function: Any) -> bool:
    """Whether a function overrides setup() or teardown()."""
    kind = type(function)
    return isinstance(function, WorkerLifecycle) and (
        kind.setup is not WorkerLifecycle.setup or kind.teardown is not WorkerLifecycle.teardown
    )


def _call(method: Callable[[], Any]) -> None:
    result = method()
    if inspect.isawaitable(result):
        worker_loop().run(result)


def _tear_down_all(operator_uid: str, functions: Iterable[Any]) -> None:
    for function in functions:
        _tear_down(operator_uid, function)


def _tear_down(operator_uid: str, function: Any) -> None:
    try:
        _call(function.teardown)
    except Exception as error:
        _logger.warning("operator %r: teardown raised %s", operator_uid, describe_exception(error))


def _copy_attributes(function: Any, origin: Any) -> None:
    """Copy all attributes to a function of the same class."""
    if hasattr(origin, "__dict__"):
        function.__dict__.clear()
        function.__dict__.update(origin.__dict__)
    for kind in type(origin).__mro__:
        for member in vars(kind).values() if "__slots__" in vars(kind) else ():
            if isinstance(member, MemberDescriptorType) and hasattr(origin, member.__name__):
                member.__set__(function, member.__get__(origin))


def check_broadcast_copies(completed: CompletedCheckpoint) -> None:
    """Raise `EpochError` if two subtasks of an operator acknowledged different copies of a broadcast state."""
    for operator in completed.operators:
        _check(operator.uid, completed.checkpoint_id, operator.subtasks)


def _check(uid: str, checkpoint_id: int, subtasks: Iterable[SubtaskState]) -> None:
    first: dict[str, tuple[int, bytes]] = {}
    for index, subtask in enumerate(subtasks):
        if subtask.operator is None:
            continue
        for state in decode_operator_state(subtask.operator).states:
            digest = _digest(state)
            if digest is None or state.name.startswith(RESERVED_PREFIX):
                continue
            first_index, known = first.setdefault(state.name, (index, digest))
            if digest != known:
                raise EpochError(
                    f"operator {uid!r}, epoch {checkpoint_id}: the copies of broadcast state {state.name!r} in "
                    f"subtasks {first_index} and {index} differ; every subtask must change it in "
                    f"the same way, so use only the broadcast record and broadcast state"
                )


def _digest(state: OperatorStateMeta) -> bytes | None:
    """Return the digest of a copy of broadcast state; None if it is unknown, as after a rescale, or for other modes."""
    if state.mode is not OperatorStateMode.BROADCAST or len(state.parts) > 1:
        return None
    [part] = state.parts
    return b"" if not part.slices else part.digest
