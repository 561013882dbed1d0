"""The restore report: dropped and migrated states, and when it is complete."""

from __future__ import annotations

import attrs
import pytest
from observed_job import RUN, TrackingEvent, acknowledged

from snapshots.compatibility import CompatibilityIssue, CompatibilityKind, FieldCompatibility
from statebackend.state.backend_parameters import StateRestoreReport
from statebackend.state.state_compatibility import SchemaReport, StateCompatibility
from statebackend.streaming.metrics import CheckpointCost, restore_report
from statebackend.streaming.observing.job_events import JobListeners
from statebackend.streaming.observing.job_recorder import JobRecorder, LiveMetrics, restore_report_of

FINDINGS = tuple(
    CompatibilityIssue(compatibility.value, compatibility, "some-rule", "a reason")
    for compatibility in FieldCompatibility
    if compatibility.value != "reject"
)
VISITS = StateCompatibility("visits", CompatibilityKind.AFTER_MIGRATION, FINDINGS, {})
KEYS = StateCompatibility("(key)", CompatibilityKind.AS_IS, (), {})
BOTH = {"count": SchemaReport("count", KEYS, (VISITS,), operator_state_compatibilities=(VISITS,))}
SUBTASK = restore_report(
    [StateRestoreReport("visits", VISITS, 3, 0.5)], [StateRestoreReport("visits", VISITS, 40, 2.0)]
)


def test_only_dropped_state_is_lost() -> None:
    [keyed, _] = restore_report_of(BOTH, [])
    assert [issue.path for issue in keyed.lost] == ["lossy"]


def test_keyed_and_operator_state_of_one_name_are_distinct() -> None:
    reported = restore_report_of(BOTH, [("count", SUBTASK), ("other", SUBTASK)])
    assert [(one.is_operator_state, one.entries_migrated, one.duration_s) for one in reported] == [
        (False, 3, 0.5),
        (True, 40, 2.0),
    ]


@pytest.mark.parametrize("keeps_subtasks_open", [True, False])
def test_migrations_are_reported_once_and_later_only_for_open_subtasks(keeps_subtasks_open: bool) -> None:
    heard = TrackingEvent()
    recorder = JobRecorder(
        RUN, lambda: LiveMetrics(BOTH), JobListeners((heard,)), keeps_subtasks_open=keeps_subtasks_open
    )
    for epoch_id in (1, 2):
        acknowledgements = [attrs.evolve(acknowledged(epoch_id, epoch_id), report=SUBTASK)]
        recorder.epoch_completed(epoch_id, acknowledgements, CheckpointCost())
    migrated = [event.state for event in heard.events if type(event).__name__ == "StateMigrated"]
    assert [(one.is_operator_state, one.entries_migrated) for one in migrated] == [(False, 3), (True, 40)]
    in_all = [one.entries_migrated for one in recorder.restore_report()]
    assert in_all == ([6, 80] if keeps_subtasks_open else [3, 40])
