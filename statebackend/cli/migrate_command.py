"""The command `migrate`: writes a savepoint in the types of a program before the program is deployed."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from statebackend.cli.job_commands import STATUSES, Job, comparison_answer, print_comparisons
from statebackend.cli.job_loading import load_job
from statebackend.cli.opening import show_progress
from statebackend.cli.rewrite_command import NewPlace, print_written, written_answer
from statebackend.cli.terminal import AsJson, CheckpointId, Place, ZooKeeper, print_answer, services_of
from statebackend.savepoint.restored_state import RestoredState
from statebackend.savepoint.rewrite.plan import Plan
from statebackend.savepoint.rewrite.savepoint_writer import SavepointWriter
from statebackend.savepoint.state_location import find_state
from statebackend.streaming.compatibility_check import CompatibilityChecker, DescribedJob
from statebackend.streaming.runtime.state_registration import keyed_descriptors

__all__ = ["migration_plan"]


def migrate(
    path: Place,
    new: NewPlace,
    job: Job,
    checkpoint: CheckpointId = None,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Accept the loss of fields, states or operators.")
    ] = False,
    drop_sinks: Annotated[
        bool, typer.Option("--drop-sinks", help="Of a checkpoint: what its sinks had to commit was committed.")
    ] = False,
    drop_source_progress: Annotated[
        bool, typer.Option("--drop-source-progress", help="Let sources be read from their beginning.")
    ] = False,
    zookeeper: ZooKeeper = None,
    as_json: AsJson = False,
) -> None:
    """Write a savepoint whose keyed state has the types of a program, so that a start migrates nothing."""
    described = load_job(job)
    services = services_of(zookeeper)
    restored = find_state(path, checkpoint, services)
    # The job may complete a newer checkpoint meanwhile: migrate the one that is checked here.
    found = restored.metadata.checkpoint_id
    comparison = CompatibilityChecker(described, restored).compare()
    if not comparison.outcome.is_accepted(allow_loss):
        print_answer(as_json, [comparison_answer(comparison)], print_comparisons)
        raise typer.Exit(STATUSES[comparison.outcome])
    plan = migration_plan(described, restored)
    if drop_sinks:
        plan.drop_sinks()
    if drop_source_progress:
        plan.drop_source_progress()
    writer = SavepointWriter.copy_of(path, new, checkpoint_id=found, high_availability=services)
    # Output of the program's converters is not part of the answer.
    with contextlib.redirect_stdout(sys.stderr), show_progress() as progress:
        written = writer.write(plan, progress)
    print_answer(as_json, written_answer(written), print_written)


def migration_plan(job: DescribedJob, restored: RestoredState) -> Plan:
    """Return the plan that migrates the stored keyed state to the descriptors of the job."""
    plan = Plan()
    for uid, operator in job.operators.items():
        metas = restored.keyed_metas_of(uid)
        if not metas:
            continue
        stored = {state.name for meta in metas for state in meta.states}
        key_serializer = operator.key_serializer or metas[0].key_snapshot.restore_serializer()
        plan.migrate_operator(
            uid,
            [
                (descriptor, operator.states.namespace(descriptor.name))
                for descriptor in keyed_descriptors(operator.states, key_serializer)
                if descriptor.name in stored
            ],
        )
    return plan
