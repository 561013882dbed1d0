"""The commands that write a changed copy of a savepoint or checkpoint.

`rewrite` follows a plan in a Python file; `migrate` writes the types of a program before the program is deployed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Annotated, Any, Final

import typer

from snapshots.errors import format_value
from statebackend.cli.job_commands import STATUSES, Job, comparison_answer, print_comparisons
from statebackend.cli.job_loading import load_job
from statebackend.cli.opening import show_progress
from statebackend.cli.printing import Printer
from statebackend.cli.terminal import (
    AllowLoss,
    AsJson,
    CheckpointId,
    Place,
    ScratchDirectory,
    ZooKeeper,
    print_answer,
    services_of,
)
from statebackend.savepoint.errors import PlanError
from statebackend.savepoint.restored_state import RestoredState
from statebackend.savepoint.rewrite.plan import Plan
from statebackend.savepoint.rewrite.savepoint_writer import SavepointWriter, WrittenSavepoint
from statebackend.savepoint.savepoint import Savepoint
from statebackend.savepoint.sizes import counted, format_bytes
from statebackend.savepoint.state_location import find_state
from statebackend.state.priority_queue import displayed_state
from statebackend.streaming.compatibility_check import CompatibilityChecker, DescribedJob
from statebackend.streaming.runtime.state_registration import keyed_descriptors

__all__ = ["known_of", "load_plan", "made_plan", "migration_plan", "print_written", "written_answer"]


NewPlace = Annotated[str, typer.Argument(metavar="NEW", help="The directory of the new savepoint, absent or empty.")]

_EXAMPLE: Final = "def plan(savepoint): return Plan().rename_operator('old', 'new')"


def rewrite(
    path: Place,
    new: NewPlace,
    plan: Annotated[
        str, typer.Option("--plan", metavar="FILE", help="A Python file with a function plan(savepoint) -> Plan.")
    ],
    checkpoint: CheckpointId = None,
    scratch: ScratchDirectory = None,
    zookeeper: ZooKeeper = None,
    as_json: AsJson = False,
) -> None:
    """Write a changed copy of a savepoint. The plan is a Python file, and the command runs it."""
    services = services_of(zookeeper)
    # Output of the plan is not part of the answer.
    with contextlib.redirect_stdout(sys.stderr):
        module = load_plan(plan)
        known = known_of(module, plan)
        looked_at = Savepoint.open(path, checkpoint, known=known, high_availability=services)
        made = made_plan(module, looked_at, plan)
        # The job may complete a newer checkpoint meanwhile: rewrite the one that the plan was made for.
        found = looked_at.metadata.checkpoint_id
        with show_progress() as progress:
            writer = SavepointWriter.copy_of(
                path, new, checkpoint_id=found, known=known, scratch_directory=scratch, high_availability=services
            )
            written = writer.write(made, progress)
    print_answer(as_json, written_answer(written), print_written)


def written_answer(written: WrittenSavepoint) -> dict[str, Any]:
    """Return the result as plain data."""
    return {
        "uri": written.uri,
        "files": written.files,
        "size_bytes": written.size_bytes,
        "duration_s": round(written.duration_s, 3),
        "operators": {
            uid: {
                "is_copied": uid in written.copied_operators,
                "rows": dict(rows),
                "operator_state_rows": dict(written.operator_state_rows[uid]),
                "left_out": dict(written.left_out[uid]),
            }
            for uid, rows in written.rows.items()
        },
        "warnings": [
            f"change {number} of the plan ({change}) left out nothing; does it compare with values of their type?"
            for number, change in written.changes_without_effect.items()
        ],
    }


def print_written(printer: Printer, answer: dict[str, Any]) -> None:
    """Print the result."""
    printer.line(f"{answer['uri']}: {counted(answer['files'], 'file')}, {format_bytes(answer['size_bytes'])}")
    for uid, operator in answer["operators"].items():
        for name, entries in (operator["rows"] | operator["operator_state_rows"]).items():
            left_out = operator["left_out"].get(name)
            also = "" if left_out is None else f", {left_out:,} left out"
            printer.line(
                f"  operator {uid}, state {displayed_state(name)}: {counted(entries, 'entry', 'entries')} written{also}"
            )
        if operator["is_copied"]:
            printer.line(f"  operator {uid}: as it was")
    for warning in answer["warnings"]:
        printer.line(f"warning: {warning}")


def load_plan(path: str) -> ModuleType:
    """Run the Python file of a plan. Raises `PlanError` if it fails."""
    spec = importlib.util.spec_from_file_location("statebackend_plan", os.path.expanduser(path))
    if spec is None or spec.loader is None:
        raise typer.BadParameter(f"--plan {path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    # Type hints of its classes are resolved in sys.modules.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError:
        raise
    except (Exception, SystemExit) as error:
        raise PlanError(f"the plan {path} failed: {type(error).__name__}: {error}") from error
    return module


def known_of(module: ModuleType, path: str) -> Sequence[Any]:
    """Return the classes of the program that the plan names. Raises `PlanError` if they are not a list."""
    known = getattr(module, "known", ())
    if not isinstance(known, (list, tuple)):
        raise PlanError(
            f"known of {path} is {format_value(known)}, not a list of the program's classes: known = [Order]"
        )
    return known


def made_plan(module: ModuleType, savepoint: Any, path: str) -> Plan:
    """Return the plan for the savepoint. Raises `PlanError` if there is none."""
    function = getattr(module, "plan", None)
    if not callable(function):
        raise PlanError(f"{path} has no function plan: {_EXAMPLE}")
    try:
        made = function(savepoint)
    except (Exception, SystemExit) as error:
        raise PlanError(f"plan() of {path} failed with {type(error).__name__}: {error}. Nothing was written") from error
    if not isinstance(made, Plan):
        raise PlanError(f"plan() of {path} returned a {type(made).__name__}, not a Plan: {_EXAMPLE}")
    return made


def migrate(
    path: Place,
    new: NewPlace,
    job: Job,
    checkpoint: CheckpointId = None,
    allow_loss: AllowLoss = False,
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
