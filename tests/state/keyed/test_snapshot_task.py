"""The states of a snapshot task, and which calls report its end."""

import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from statebackend.state.snapshot_task import (
    TRANSITIONS,
    SnapshotTask,
    SnapshotTaskError,
    SnapshotTasks,
    SnapshotTaskState,
)

PATIENCE_S = 600


class RecordedTask(SnapshotTask[str]):
    """Records its calls; ``steps`` is called during the write."""

    def __init__(self, step=lambda task: None):
        super().__init__()
        self.step = step
        self.calls = []

    def write(self):
        self.calls.append("write")
        self.step(self)
        self.raise_if_cancelled()
        return "snapshot"

    def remove_written(self):
        self.calls.append("remove")

    def ended(self, snapshot):
        self.calls.append(("ended", snapshot))


def failing(task):
    raise OSError("the disk is full")


def test_a_written_task_notifies_its_backend():
    task = RecordedTask()
    assert task.run() == "snapshot"
    assert task.calls == ["write", ("ended", "snapshot")]
    assert task.state is SnapshotTaskState.DONE


def test_a_failure_removes_written_files_before_the_backend_is_released():
    task = RecordedTask(failing)
    with pytest.raises(OSError, match="disk is full"):
        task.run()
    assert task.calls == ["write", "remove", ("ended", None)]
    assert task.state is SnapshotTaskState.FAILED
    assert not task.cancel()
    with pytest.raises(SnapshotTaskError, match="'run' cannot happen to a snapshot that is failed"):
        task.run()


def test_the_backend_is_notified_even_if_written_files_cannot_be_removed():
    class Clumsy(RecordedTask):
        def remove_written(self):
            super().remove_written()
            raise PermissionError("not yours")

    task = Clumsy(failing)
    with pytest.raises(PermissionError, match="not yours"):
        task.run()
    assert task.calls == ["write", "remove", ("ended", None)]
    assert task.state is SnapshotTaskState.FAILED


def test_a_task_that_never_ran_ends_once_when_it_is_cancelled():
    task = RecordedTask()
    assert task.cancel()
    assert task.cancel()
    with pytest.raises(CancelledError):
        task.run()
    assert task.calls == [("ended", None)]


@pytest.mark.parametrize("step", [lambda task: task.cancel(), lambda task: (task.cancel(), failing(task))])
def test_a_running_task_ends_on_its_own_thread_when_cancelled(step):
    task = RecordedTask(step)
    with pytest.raises(CancelledError):
        task.run()
    assert task.calls == ["write", "remove", ("ended", None)]
    assert task.state is SnapshotTaskState.CANCELLED


def test_a_running_future_is_cancelled_through_its_task():
    reached, gate = threading.Event(), threading.Event()

    def wait_for_gate(task):
        reached.set()
        assert gate.wait(PATIENCE_S)

    task = RecordedTask(wait_for_gate)
    with ThreadPoolExecutor(1) as threads:
        future = task.submit(threads)
        assert reached.wait(PATIENCE_S)
        assert not future.cancel()
        assert task.cancel()
        gate.set()
        with pytest.raises(CancelledError):
            future.result(PATIENCE_S)


def test_all_running_tasks_are_cancelled_at_once():
    tasks = SnapshotTasks()
    done, prepared = RecordedTask(), RecordedTask()
    done.run()
    for task in (done, prepared):
        tasks.add(task)
    tasks.cancel()
    assert (done.state, prepared.state) == (SnapshotTaskState.DONE, SnapshotTaskState.CANCELLED)


def test_an_ended_task_has_no_transition():
    ended = {SnapshotTaskState.DONE, SnapshotTaskState.CANCELLED, SnapshotTaskState.FAILED}
    assert not ended & {state for state, _ in TRANSITIONS}
