"""How an epoch runs: the first failure is raised, even if the clean-up fails too."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence

import pytest

from statebackend.checkpoint import (
    Acknowledgement,
    CheckpointCoordinator,
    FileHandle,
    KeyedStateHandle,
    SubtaskState,
    TaskId,
)
from statebackend.checkpoint.coordinator.pending_checkpoint import CompletedCheckpoint
from statebackend.spark import epoch_driver as epoch_runner
from statebackend.spark.epoch_driver import EpochRunner
from statebackend.spark.epochs import BatchArrived, Epoch, Epochs, EpochState
from statebackend.streaming.errors import EpochError

TASK = TaskId("words", 0)


def acknowledgement(content: str, attempt: str) -> Acknowledgement:
    file = FileHandle(f"shared/{attempt}", 5, "xxh3:" + 32 * "0")
    return Acknowledgement(
        job_id="job",
        run_id="run",
        checkpoint_id=0,
        operator_uid=TASK.operator_uid,
        subtask_index=TASK.subtask_index,
        attempt_id=attempt,
        digest=content,
        state=SubtaskState(KeyedStateHandle(attempt, "heap", 0, 3, b"", (file,))),
    )


class FakeRuntime:
    """One task with given acknowledgements. Deleting and committing can raise given errors."""

    def __init__(
        self,
        *acknowledgements: Acknowledgement,
        tasks: Collection[TaskId] = (TASK,),
        discard_error: Exception | None = None,
        commit_error: Exception | None = None,
    ) -> None:
        self.committing = contextlib.nullcontext()
        self.done: list[str] = []
        self._acknowledgements = acknowledgements
        self._tasks = tasks
        self._discard_error, self._commit_error = discard_error, commit_error

    def begin(self, epoch: Epoch) -> Collection[TaskId]:
        return self._tasks

    def run(self, epoch: Epoch) -> Iterable[Acknowledgement]:
        return self._acknowledgements

    def store(self, epoch: Epoch, completed: CompletedCheckpoint) -> None:
        self.done.append("store")

    def commit(self, epoch: Epoch) -> None:
        self.done.append("commit")
        if self._commit_error is not None:
            raise self._commit_error

    def commit_again(self, checkpoint_id: int) -> None:
        self.done.append("commit again")

    def abort(self, epoch: Epoch) -> None:
        self.done.append("abort")

    def discard(self, states: Sequence[SubtaskState], in_use: frozenset[str]) -> None:
        self.done.append("discard " + ", ".join(sorted(file.path for state in states for file in state.files)))
        if self._discard_error is not None:
            raise self._discard_error


def run(runtime: FakeRuntime) -> Epochs:
    epochs = Epochs(CheckpointCoordinator("job", "run", timeout_ms=None, max_parallelism=4), None)
    EpochRunner(epochs, runtime, lambda: 0).run(BatchArrived(0))
    return epochs


@pytest.mark.parametrize("discard_error", [None, OSError("the disk is gone")])
def test_undeletable_files_hide_no_rejection_and_the_sink_aborts_anyway(
    discard_error: Exception | None,
) -> None:
    runtime = FakeRuntime(acknowledgement("same", "a"), acknowledgement("other", "b"), discard_error=discard_error)
    with pytest.raises(EpochError, match="conflict acknowledgement"):
        run(runtime)
    assert runtime.done == ["discard shared/a, shared/b", "abort"]


def test_undeletable_files_of_a_repeated_attempt_fail_no_epoch() -> None:
    runtime = FakeRuntime(
        acknowledgement("same", "a"), acknowledgement("same", "b"), discard_error=OSError("the disk is gone")
    )
    assert run(runtime).state is EpochState.IDLE
    assert runtime.done == ["discard shared/b", "store", "commit"]


@pytest.mark.parametrize("tasks", [(TASK,), ()])
def test_output_that_cannot_be_committed_stays_staged_with_its_checkpoint(tasks: tuple[TaskId, ...]) -> None:
    acknowledgements = [acknowledgement("same", "a") for _ in tasks]
    runtime = FakeRuntime(*acknowledgements, tasks=tasks, commit_error=OSError("the disk is full"))
    with pytest.raises(OSError, match="the disk is full"):
        run(runtime)
    assert runtime.done == ["store", "commit"]


def test_inconsistent_state_is_rejected_before_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(completed: CompletedCheckpoint) -> None:
        raise EpochError("the copies differ")

    monkeypatch.setattr(epoch_runner, "check_broadcast_copies", reject)
    runtime = FakeRuntime(acknowledgement("same", "a"))
    with pytest.raises(EpochError, match="the copies differ"):
        run(runtime)
    assert runtime.done == ["discard shared/a"]
