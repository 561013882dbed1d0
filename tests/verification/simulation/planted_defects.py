"""Small patches of the product, each a typical mistake, to test that schedules find them.

`python -m tests.verification.simulation.planted_defects` prints how many schedules each took, as in docs/simulation.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, Final
from unittest import mock

from attrs import evolve, frozen

from statebackend.checkpoint.barriers import exactly_once as exactly_once_handler
from statebackend.checkpoint.barriers import tracker as barrier_tracker
from statebackend.checkpoint.barriers.elements import CaptureComplete, Resume, StartCapture, StopCapture
from statebackend.checkpoint.barriers.exactly_once import (
    AlignmentEvent,
    AlignmentPhase,
    AlignmentStep,
    ExactlyOnceHandler,
)
from statebackend.checkpoint.barriers.tracker import TrackedPhase, TrackingEvent, TrackingStep
from statebackend.checkpoint.coordinator.checkpoint_coordinator import AcknowledgementResult, CheckpointCoordinator
from statebackend.checkpoint.coordinator.pending_checkpoint import PendingCheckpoint
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.ha.zookeeper import ZooKeeperLeadership
from statebackend.checkpoint.store.completed_checkpoint_store import DirectoryCheckpointStore, SharedStateRegistry
from tests.verification.simulation.defects_of_jobs import DEFECTS_OF_JOBS
from tests.verification.simulation.defects_of_leases import DEFECTS_OF_LEASES
from tests.verification.simulation.planting import Patch, method
from verification.simulation.jobs.plan import JobPlan
from verification.simulation.schedules import plan_of_seed, run_schedule

__all__ = ["DEFECTS", "MOST_SCHEDULES", "Defect", "is_of_the_patch", "schedules_until_found"]

MOST_SCHEDULES: Final = 2000
FIRST_SEED: Final = 1


@frozen
class Defect:
    """``name`` is the one in the documentation; ``patch`` is a context with the defect."""

    name: str
    patch: Patch
    is_of_jobs: bool = False
    """Whether only schedules of jobs run the patched code. Schedules of the cluster are then counted but not run."""

    def may_be_found_by(self, seed: int) -> bool:
        """Whether the schedule of that seed runs the patched code."""
        return not self.is_of_jobs or isinstance(plan_of_seed(seed), JobPlan)


def schedules_until_found(defect: Defect) -> tuple[int, str] | None:
    """The number of schedules until the defect is found, and the last failure; None if it is not."""
    with defect.patch():
        for count in range(MOST_SCHEDULES):
            if not defect.may_be_found_by(FIRST_SEED + count):
                continue
            failure = run_schedule(plan_of_seed(FIRST_SEED + count)).failure
            if failure is not None:
                return count + 1, failure
    return None


def is_of_the_patch(failure: str) -> bool:
    """Whether a failure means that the product no longer fits the patch."""
    return failure.startswith(("AttributeError", "NameError", "TypeError"))


def _step_of_handler(step: AlignmentStep, instead: Callable[[ExactlyOnceHandler, Any], Any]) -> Patch:
    return lambda: mock.patch.dict(exactly_once_handler._STEPS, {step: instead})


def _transition(phase: AlignmentPhase, seen: AlignmentEvent, without: AlignmentStep) -> Patch:
    table = exactly_once_handler.EXACTLY_ONCE_TRANSITIONS
    following, steps = table[phase, seen]
    changed = {**table, (phase, seen): (following, tuple(one for one in steps if one is not without))}
    return lambda: mock.patch.object(exactly_once_handler, "EXACTLY_ONCE_TRANSITIONS", changed)


def _resumed_early() -> Patch:
    def block(self: ExactlyOnceHandler, seen: Any) -> Any:
        return (Resume((seen.channel,)),)

    return _step_of_handler(AlignmentStep.BLOCK, block)


def _capture_of_one_forgotten() -> Patch:
    original = exactly_once_handler._STEPS[AlignmentStep.CAPTURE]

    def capture(self: ExactlyOnceHandler, seen: Any) -> Any:
        [action] = original(self, seen)
        self._captured.discard(max(self._captured, default=-1))
        return (StartCapture(action.checkpoint_id, action.channels[:-1]),)

    return _step_of_handler(AlignmentStep.CAPTURE, capture)


def _capture_ends_early() -> Patch:
    def stop(self: ExactlyOnceHandler, seen: Any) -> Any:
        stopped = tuple(sorted(self._captured))
        self._captured.clear()
        return (StopCapture(self._newest_id, stopped), CaptureComplete(self._newest_id, 0, 0)) if stopped else ()

    return _step_of_handler(AlignmentStep.STOP_CAPTURE, stop)


def _triggered_at_first_barrier() -> Patch:
    table = exactly_once_handler.EXACTLY_ONCE_TRANSITIONS
    following, steps = table[AlignmentPhase.IDLE, AlignmentEvent.ALIGNED_BARRIER]
    first = (AlignmentPhase.IDLE, AlignmentEvent.ALIGNED_BARRIER)
    last = (AlignmentPhase.ALIGNING, AlignmentEvent.LAST_ALIGNED_BARRIER)
    without = tuple(one for one in table[last][1] if one is not AlignmentStep.TRIGGER)
    changed = {**table, first: (following, (*steps, AlignmentStep.TRIGGER)), last: (table[last][0], without)}
    return lambda: mock.patch.object(exactly_once_handler, "EXACTLY_ONCE_TRANSITIONS", changed)


def _tracker_triggers_at_first() -> Patch:
    table = barrier_tracker.AT_LEAST_ONCE_TRANSITIONS
    changed = {
        **table,
        (TrackedPhase.UNKNOWN, TrackingEvent.BARRIER): (
            TrackedPhase.COUNTING,
            (TrackingStep.TRACK, TrackingStep.COUNT, TrackingStep.TRIGGER),
        ),
        (TrackedPhase.COUNTING, TrackingEvent.LAST_BARRIER): (TrackedPhase.OVER, (TrackingStep.FORGET,)),
    }
    return lambda: mock.patch.object(barrier_tracker, "AT_LEAST_ONCE_TRANSITIONS", changed)


def _foreign_accepted() -> Patch:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def acknowledge(self: CheckpointCoordinator, acknowledgement: Any) -> AcknowledgementResult:
            result: AcknowledgementResult = original(self, evolve(acknowledgement, run_id=self.run_id))
            return result

        return acknowledge

    return method(CheckpointCoordinator, "acknowledge", wrap)


def _doubled_counts_twice() -> Patch:
    def acknowledge_again(original: Callable[..., Any]) -> Callable[..., Any]:
        def acknowledge_missing(pending: PendingCheckpoint, known: Any, acknowledgement: Any) -> Any:
            missing = pending.missing_tasks()
            if missing:
                stand_in = evolve(
                    acknowledgement, operator_uid=missing[0].operator_uid, subtask_index=missing[0].subtask_index
                )
                pending.record(stand_in)
            return original(pending, known, acknowledgement)

        return acknowledge_missing

    from statebackend.checkpoint.coordinator import checkpoint_coordinator

    wrapped = acknowledge_again(checkpoint_coordinator._classify_repetition)
    return lambda: mock.patch.object(checkpoint_coordinator, "_classify_repetition", wrapped)


def _state_not_synced() -> Patch:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def write_file(self: CheckpointFileSystem, path: str, data: bytes, *, durable: bool = True) -> Any:
            return original(self, path, data, durable=durable and not path.startswith("shared/"))

        return write_file

    return method(CheckpointFileSystem, "write_file", wrap)


def _metadata_not_synced() -> Patch:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def write_file(self: CheckpointFileSystem, path: str, data: bytes, *, durable: bool = True) -> Any:
            return original(self, path, data, durable=durable and not path.endswith("_metadata"))

        return write_file

    return method(CheckpointFileSystem, "write_file", wrap)


def _shared_dropped_too_soon() -> Patch:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def unregister(self: SharedStateRegistry, checkpoint_id: int) -> frozenset[str]:
            paths = self._paths_by_checkpoint[checkpoint_id]
            original(self, checkpoint_id)
            return paths

        return unregister

    return method(SharedStateRegistry, "unregister", wrap)


def _discarded_though_shared() -> Patch:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def discard(self: DirectoryCheckpointStore, states: Any, in_use: Any = ()) -> Any:
            return self._delete_files({file.path for state in states for file in state.files})

        return discard

    return method(DirectoryCheckpointStore, "discard", wrap)


def _unfinished_left() -> Patch:
    return method(CheckpointFileSystem, "delete_directory", lambda original: lambda self, path: None)


def _orphans_left() -> Patch:
    return method(DirectoryCheckpointStore, "delete_orphans", lambda original: lambda self, in_use=(): ())


def _orphans_of_retained() -> Patch:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def delete_orphans(self: DirectoryCheckpointStore, in_use: Any = ()) -> Any:
            newest = self.latest()
            keep = set() if newest is None else {file.path for file in newest.files}
            found = self._fs.list_files("shared", include_temporary=True)
            return self._delete_files(path for path in found if path not in keep)

        return delete_orphans

    return method(DirectoryCheckpointStore, "delete_orphans", wrap)


def _failed_store_left() -> Patch:
    """A file stays after its rename, although the write is reported as failed."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def add(self: DirectoryCheckpointStore, metadata: Any) -> Any:
            with (
                mock.patch.object(CheckpointFileSystem, "delete"),
                mock.patch.object(CheckpointFileSystem, "delete_directory"),
            ):
                return original(self, metadata)

        return add

    return method(DirectoryCheckpointStore, "add", wrap)


def _not_fenced_in_the_transaction() -> Patch:
    """Leadership is checked before the transaction, not in it."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def commit(self: ZooKeeperLeadership, what: str, build: Any, is_done: Any) -> Any:
            self.check()
            rejected = self.session.commit(what, build)
            return None if rejected is None else rejected.error

        return commit

    return method(ZooKeeperLeadership, "commit", wrap)


def _led_while_another_leads() -> Patch:
    """A standby driver leads while another one leads."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def acquired(self: ZooKeeperLeadership, acquire: Any, timeout_s: float) -> bool:
            return bool(original(self, acquire, timeout_s) or timeout_s > 1.0)

        return acquired

    return method(ZooKeeperLeadership, "_acquired", wrap)


def _lost_answer_is_a_rejection() -> Patch:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, what, build, is_done: original(self, what, build, lambda: False)

    return method(ZooKeeperLeadership, "commit", wrap)


def _stale_barrier_not_resumed() -> Patch:
    return _step_of_handler(AlignmentStep.RESUME, lambda self, seen: ())


DEFECTS: Final[tuple[Defect, ...]] = (
    Defect("a channel is resumed early, before the other barriers are there", _resumed_early()),
    Defect("records in flight of one channel are not captured", _capture_of_one_forgotten()),
    Defect("capturing ends with the first barrier instead of the last", _capture_ends_early()),
    Defect("an aligned snapshot is taken at the first barrier", _triggered_at_first_barrier()),
    Defect("the tracker takes its snapshot at the first barrier", _tracker_triggers_at_first()),
    Defect("channels blocked by a late barrier are not resumed", _stale_barrier_not_resumed()),
    Defect("an acknowledgement of an earlier run is accepted", _foreign_accepted()),
    Defect("a repeated acknowledgement counts twice", _doubled_counts_twice()),
    Defect("state is acknowledged before it is synced", _state_not_synced()),
    Defect("_metadata is not synced", _metadata_not_synced()),
    Defect("a shared file is deleted with the first checkpoint that uses it", _shared_dropped_too_soon()),
    Defect("discarding state deletes files that other checkpoints use", _discarded_though_shared()),
    Defect("the directory of an unfinished checkpoint remains", _unfinished_left()),
    Defect("orphans are not deleted at a start", _orphans_left()),
    Defect("orphan deletion considers only the newest checkpoint", _orphans_of_retained()),
    Defect("a checkpoint that could not be stored is not deleted", _failed_store_left()),
    *(Defect(name, patch) for name, patch in DEFECTS_OF_LEASES),
    Defect("leadership is checked before the transaction instead of in it", _not_fenced_in_the_transaction()),
    Defect("a standby driver leads after a long wait, although the leader is alive", _led_while_another_leads()),
    Defect("a lost answer of ZooKeeper is mistaken for a rejection", _lost_answer_is_a_rejection()),
    *(Defect(name, patch, is_of_jobs=True) for name, patch in DEFECTS_OF_JOBS),
)


def main() -> None:
    """Print the table."""
    print("| defect | schedules until found | first error of the schedule |\n| --- | ---: | --- |")  # noqa: T201
    wanted = " ".join(sys.argv[1:])
    for defect in (one for one in DEFECTS if wanted in one.name):
        found = schedules_until_found(defect)
        error = "" if found is None else re.split("[:;]", found[1])[0]
        error = error.replace("AssertionError", "an assertion of the product fails")
        reported = "not found" if found is None else f"{found[0]} | {error}"
        print(f"| {defect.name} | {reported} |", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
