"""The commands for the state of other engines.

`import` converts a Flink savepoint, or the checkpoint of a Spark query, to a Statebackend savepoint. `export-flink`
writes a canonical Flink savepoint from stored state.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

import typer
from attrs import evolve, frozen

from snapshots.compatibility import CompatibilityKind
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.store.savepoint_directory import check_savepoint_directory
from statebackend.cli.job_commands import AT_AN_IMPORT, STATUSES, comparison_answer, print_comparison
from statebackend.cli.job_loading import load_job
from statebackend.cli.opening import show_progress, spark_checkpoint
from statebackend.cli.printing import Printer
from statebackend.cli.rewrite_commands import (
    known_of,
    load_plan,
    made_plan,
    migration_plan,
    print_written,
    written_answer,
)
from statebackend.cli.terminal import (
    AllowLoss,
    AsJson,
    CheckpointId,
    Moved,
    Place,
    ScratchDirectory,
    ZooKeeper,
    moved_directories,
    print_answer,
    services_of,
)
from statebackend.savepoint.errors import PlanError
from statebackend.savepoint.foreign.flink_files import FlinkFiles
from statebackend.savepoint.foreign.flink_import import without_sources
from statebackend.savepoint.restored_state import RestoredState
from statebackend.savepoint.rewrite.flink_writer import write_flink_savepoint
from statebackend.savepoint.rewrite.plan import Plan
from statebackend.savepoint.rewrite.savepoint_writer import SavepointWriter, WrittenSavepoint
from statebackend.savepoint.rewrite.staged_entries import scratch_space
from statebackend.savepoint.savepoint import Savepoint
from statebackend.savepoint.sizes import counted
from statebackend.savepoint.state_location import find_state, is_spark_checkpoint
from statebackend.state.descriptors import as_serializer
from statebackend.state.progress import ProgressListener
from statebackend.streaming.compatibility_check import Comparison, CompatibilityChecker, DescribedJob, Outcome
from typeserializers.kernel.type_serializer import TypeSerializer


def import_(
    path: Place,
    new: Annotated[str, typer.Argument(metavar="DEST", help="The directory of the new savepoint, absent or empty.")],
    job: Annotated[
        str | None,
        typer.Option(
            "--job", metavar="MODULE:FACTORY", help="The function that builds the job, such as flights.job:build."
        ),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option("--plan", metavar="FILE", help="A Python file with a function plan(savepoint) -> Plan."),
    ] = None,
    moved: Moved = None,
    allow_loss: AllowLoss = False,
    scratch: ScratchDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Convert a Flink savepoint, or the checkpoint of a Spark query, to a Statebackend savepoint.

    For Flink, pass --job, --plan or both. For Spark, pass --plan.
    """
    if job is None and plan is None:
        raise typer.BadParameter("pass --job MODULE:FACTORY or --plan FILE, which define how each operator is imported")
    if is_spark_checkpoint(CheckpointFileSystem.from_uri(path)):
        if plan is None or job is not None or moved or allow_loss or scratch is not None:
            raise typer.BadParameter(
                f"{path} is a checkpoint of Spark: pass --plan FILE, and no --job, --moved, --allow-loss or --scratch"
            )
        _import_from_spark(path, new, plan, as_json)
        return
    described = None if job is None else load_job(job)
    check_savepoint_directory(new, may_clear=True)
    found = find_state(path, moved=moved_directories(moved))
    if not isinstance(found.file_system, FlinkFiles):
        raise PlanError(
            f"{path} is not a savepoint or checkpoint of Flink. For state of Statebackend, use rewrite or migrate"
        )
    # Output of the plan and of the program's converters is not part of the answer.
    with contextlib.redirect_stdout(sys.stderr), scratch_space(scratch) as directory, show_progress() as progress:
        uids = [] if described is None else list(described.operators)
        known: list[TypeSerializer[Any]] = []
        made = Plan()
        if plan is None:
            restored, sources = without_sources(found, uids)
        else:
            module = load_plan(plan)
            known += map(as_serializer, known_of(module, plan))
            restored, sources = without_sources(found, [*getattr(module, "uids", ()), *uids])
            made = made_plan(module, Savepoint(restored, known), plan)
        writer = _Import(restored, known, made, directory, allow_loss, progress)
        if described is None:
            written: WrittenSavepoint | Comparison = writer.write(new)
        elif plan is None:
            written = writer.write_for(described, new)
        else:
            written = writer.write_planned_for(described, new)
    if isinstance(written, Comparison):
        print_answer(as_json, [comparison_answer(written)], _print_rejected)
        raise typer.Exit(STATUSES[written.outcome])
    offsets = {one.uid: {"splits": one.split_count, "startingOffsets": one.starting_offsets} for one in sources}
    answer = written_answer(written) | {"sources": offsets}
    print_answer(as_json, answer, _print_imported)


def _import_from_spark(path: str, new: str, plan: str, as_json: bool) -> None:
    """Write the state that the plan adds. Spark reads its own checkpoint."""
    check_savepoint_directory(new, may_clear=True)
    with contextlib.redirect_stdout(sys.stderr), show_progress() as progress:
        module = load_plan(plan)
        checkpoint = spark_checkpoint(path)
        options = {name: getattr(module, name) for name in ("sources", "max_parallelism") if hasattr(module, name)}
        written = checkpoint.write(new, made_plan(module, checkpoint, plan), progress=progress, **options)
    print_answer(as_json, written_answer(written), print_written)


@frozen
class _Import:
    """One import. A method returns the comparison with the job, and writes nothing, if the outcome is not accepted."""

    restored: RestoredState
    known: Sequence[TypeSerializer[Any]]
    plan: Plan
    scratch_directory: str
    allow_loss: bool
    progress: ProgressListener

    def write(self, new: str) -> WrittenSavepoint:
        writer = SavepointWriter.copy_of_restored(self.restored, new, self.known, self.scratch_directory)
        return writer.write(self.plan, self.progress)

    def write_for(self, job: DescribedJob, new: str) -> WrittenSavepoint | Comparison:
        """Write the operators and states that the job has. They are checked before anything is read."""
        comparison = _comparison(job, self.restored)
        if not comparison.outcome.is_accepted(self.allow_loss):
            return comparison
        _leave_out(self.plan, comparison)
        if _has_schemas_of_job(comparison):
            self.plan.change_max_parallelism(job.max_parallelism)
            return self.write(new)
        return self.write_planned_for(job, new)

    def write_planned_for(self, job: DescribedJob, new: str) -> WrittenSavepoint | Comparison:
        """Carry out the plan, then migrate the result to the types of the job."""
        self.plan.change_max_parallelism(job.max_parallelism)
        written = self.write(f"{self.scratch_directory}/imported")
        imported = find_state(written.uri)
        comparison = _comparison(job, imported)
        if not comparison.outcome.is_accepted(self.allow_loss):
            return comparison
        removals = _leave_out(Plan(), comparison)
        if removals.changes:
            # A migration keeps all other state.
            kept = f"{self.scratch_directory}/kept"
            writer = SavepointWriter.copy_of_restored(imported, kept, scratch_directory=self.scratch_directory)
            imported = find_state(writer.write(removals, self.progress).uri)
            written = evolve(
                written,
                rows=_rows_without(written.rows, comparison),
                operator_state_rows=_rows_without(written.operator_state_rows, comparison),
            )
        writer = SavepointWriter.copy_of_restored(imported, new, scratch_directory=self.scratch_directory)
        migrated = writer.write(migration_plan(job, imported), self.progress)
        return evolve(written, uri=migrated.uri, files=migrated.files, size_bytes=migrated.size_bytes)


def _comparison(job: DescribedJob, restored: RestoredState) -> Comparison:
    # The keys get the key groups of the job.
    return CompatibilityChecker(evolve(job, max_parallelism=restored.max_parallelism), restored).compare()


def _not_in_job(comparison: Comparison) -> Mapping[str, Collection[str]]:
    """Return the states that the job does not have, by the uids of operators that it has."""
    return {
        uid: dict.fromkeys((*report.unregistered, *report.unregistered_operator_state))
        for uid, report in comparison.reports.items()
    }


def _leave_out(plan: Plan, comparison: Comparison) -> Plan:
    """Remove the state that the job does not have."""
    for uid in comparison.dropped_operators:
        plan.remove_operator(uid)
    for uid, names in _not_in_job(comparison).items():
        for name in names:
            plan.remove_state(uid, name)
    return plan


def _rows_without(rows: Mapping[str, Mapping[str, int]], comparison: Comparison) -> Mapping[str, Mapping[str, int]]:
    """Return the numbers of rows of the state that the job has."""
    left_out = _not_in_job(comparison)
    return {
        uid: {name: count for name, count in of_state.items() if name not in left_out.get(uid, ())}
        for uid, of_state in rows.items()
        if uid not in comparison.dropped_operators
    }


def _has_schemas_of_job(comparison: Comparison) -> bool:
    return all(
        one.kind is CompatibilityKind.AS_IS for report in comparison.reports.values() for one in report.compatibilities
    )


def _print_rejected(printer: Printer, answers: Sequence[dict[str, Any]]) -> None:
    print_comparison(printer, answers[0], AT_AN_IMPORT)
    if answers[0]["outcome"] != Outcome.REJECTED.name.lower():
        printer.line("nothing was written. To accept this loss, pass --allow-loss", "red")


def _print_imported(printer: Printer, answer: dict[str, Any]) -> None:
    print_written(printer, answer)
    for uid, source in answer["sources"].items():
        if source["startingOffsets"] is not None:
            printer.line(f"source {uid}: start it with startingOffsets = {source['startingOffsets']}")
            continue
        printer.line(
            f"source {uid}: the positions of its {counted(source['splits'], 'split')} are unknown. Set the start of "
            f"your source yourself",
            "yellow",
        )


def export_flink(
    path: Place,
    new: Annotated[str, typer.Argument(metavar="DEST", help="The directory of the new savepoint, absent or empty.")],
    checkpoint: CheckpointId = None,
    scratch: ScratchDirectory = None,
    zookeeper: ZooKeeper = None,
    as_json: AsJson = False,
) -> None:
    """Write a canonical Flink savepoint. Operator ids and key groups are computed as Flink computes them."""
    restored = find_state(path, checkpoint, services_of(zookeeper))
    with show_progress() as progress:
        rows = write_flink_savepoint(restored, new, scratch_directory=scratch, progress=progress)
    print_answer(as_json, {"uri": new, "rows": rows}, _print_exported)


def _print_exported(printer: Printer, answer: dict[str, Any]) -> None:
    printer.line(f"{answer['uri']}: written")
    for uid, states in answer["rows"].items():
        for name, rows in states.items():
            printer.line(f"  operator {uid}, state {name}: {counted(rows, 'row')} written")
