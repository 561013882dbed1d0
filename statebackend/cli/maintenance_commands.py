"""The commands `gc` and `roll-back`, which change the directory of a job that is not running, without its program.

Both hold the job lease with the job's high-availability services, so no driver runs at the same time. If one does, the
command names it, fails and changes nothing.

`gc` does what a start does before its first epoch. It deletes incomplete checkpoints, then files that no completed or
abandoned checkpoint needs, then restore plans. While a checkpoint is unreadable, no file of state is deleted, because
its files look like unused ones.

`roll-back` needs the program if sinks may have published output of the abandoned epochs: only they can revert it. Then
the command only records the intent, as the first step of `execute(roll_back_to=...)` does. Only a start with the same
argument is possible from then on, and it finishes the rollback. A job of the local runtime without such sinks is
rolled back at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeAlias

import typer
from attrs import evolve, frozen

from statebackend.checkpoint.errors import CheckpointNotFoundError, MissingFileError, SavepointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.ha.leadership import raising_root_cause
from statebackend.checkpoint.ha.object_store import default_services
from statebackend.checkpoint.ha.services import DirectoryServices, JobRecords, JobServices
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.checkpoint.store.checkpoint_directories import (
    METADATA_FILE_NAME,
    PREVIOUS,
    SHARED_DIRECTORY,
    FoundCheckpoints,
)
from statebackend.checkpoint.store.completed_checkpoint_store import CompletedCheckpointStore
from statebackend.checkpoint.store.job_directory import JOB_FILE_NAME, JobDirectory
from statebackend.checkpoint.store.job_files import check_stored_in, read_stored_in, write_roll_back
from statebackend.cli.printing import Printer
from statebackend.cli.terminal import AsJson, ZooKeeper, print_answer, services_of
from statebackend.savepoint.sizes import counted, format_bytes
from statebackend.streaming.runtime.restore_plan import RESTORE_PLANS_DIRECTORY, delete_restore_plans
from statebackend.streaming.runtime.starting_point import check_no_roll_back

__all__ = [
    "LeasedJob",
    "UnusedFiles",
    "delete_unused",
    "find_unused",
    "lease_job",
    "roll_back_job",
    "roll_back_now",
]


@frozen
class LeasedJob:
    """A job whose lease is held. ``store`` has not recovered yet."""

    directory: JobDirectory
    records: JobRecords
    store: CompletedCheckpointStore


@frozen
class UnusedFiles:
    """Unused files with their sizes, and directories of incomplete checkpoints.

    Attributes:
        unreadable: Checkpoints that cannot be read. While there are any, files of state are kept.
    """

    files: Sequence[tuple[str, int]]
    directories: Sequence[str]
    unreadable: Sequence[int]

    @property
    def size_bytes(self) -> int:
        """The total size of the files."""
        return sum(size for _, size in self.files)


@contextmanager
def lease_job(
    job_dir: str, services: JobServices | None = None, driver_directory: str | None = None
) -> Iterator[LeasedJob]:
    """Hold the lease of a job within the context.

    Args:
        job_dir: The job directory.
        services: The high-availability services; None for the default.
        driver_directory: The driver directory of the job, if it has one.

    Raises:
        CheckpointNotFoundError: There is no job.
        JobDirectoryMismatchError: The services are not those of the job.
        JobDirectoryLockedError: A driver is running.
    """
    file_system = CheckpointFileSystem.from_uri(job_dir)
    identity = JobDirectory.inspect(job_dir) if file_system.exists(JOB_FILE_NAME) else None
    if identity is None:
        raise CheckpointNotFoundError(f"{file_system.uri} {_why_no_job(file_system)}. Nothing was changed")
    job_services = _services_of(job_dir, file_system, services, identity.job_name)
    if driver_directory is not None:
        job_services = job_services.with_driver_directory(driver_directory)
    with (
        JobDirectory.open(
            job_dir,
            identity.job_name,
            identity.max_parallelism,
            leadership=job_services,
            stored_in=job_services.stored_in(identity.job_name),
        ) as directory,
        raising_root_cause(directory.leadership),
    ):
        records = job_services.take_over(directory)
        store = CompletedCheckpointStore(file_system, records.pointers, leadership=directory.leadership)
        yield LeasedJob(directory, records, store)


def find_unused(job: LeasedJob) -> UnusedFiles:
    """Return what `delete_unused` would delete. Changes nothing."""
    found, file_system = job.records.pointers.find(), job.records.file_system
    needed = {file.path for one in found.retained.values() for file in one.metadata.files}
    needed |= job.records.pointers.files_set_aside()
    present = () if found.unreadable else file_system.list_files(SHARED_DIRECTORY, include_temporary=True)
    plans = file_system.list_files(RESTORE_PLANS_DIRECTORY, include_temporary=True)
    paths = [*(path for path in present if path not in needed), *plans]
    sizes = [(path, _size_bytes(file_system, path)) for path in paths]
    return UnusedFiles(sizes, tuple(found.unfinished), sorted(found.unreadable))


def _size_bytes(file_system: CheckpointFileSystem, path: str) -> int:
    try:
        return file_system.size(path)
    except MissingFileError:
        # A link, a pipe, or a file that was deleted meanwhile.
        return 0


def delete_unused(job: LeasedJob) -> UnusedFiles:
    """Delete unused files, as a start does, and return them. Files that could not be deleted are not included.

    Raises:
        CorruptMetadataError: The newest checkpoint cannot be read.
    """
    unused = find_unused(job)
    job.store.recover()
    job.store.delete_orphans()
    delete_restore_plans(job.records.file_system, job.directory.leadership)
    left = find_unused(job)
    # Files that could not be deleted stay for the next time.
    return evolve(
        unused,
        files=[one for one in unused.files if one not in left.files],
        directories=[one for one in unused.directories if one not in left.directories],
    )


def roll_back_now(job: LeasedJob, found: FoundCheckpoints, checkpoint_id: int) -> Sequence[str]:
    """Make an older checkpoint the newest. Return the directories of the abandoned checkpoints.

    Only for a job of the local runtime whose sinks have published nothing.
    """
    before = frozenset(job.store.set_aside_places())
    job.store.recover(roll_back_to=checkpoint_id)
    return [place for place in job.store.set_aside_places() if place not in before]


def _why_no_job(file_system: CheckpointFileSystem) -> str:
    absent = file_system.why_absent()
    if absent is not None:
        return f"{absent}; pass the directory of a job"
    if file_system.exists(METADATA_FILE_NAME):
        return (
            "is a savepoint, or one checkpoint: nothing in it is unused, and it cannot be rolled back; pass the "
            "directory of the job"
        )
    return f"is not a job directory: it has no file {JOB_FILE_NAME}; pass the directory that the job was started with"


def _services_of(
    job_dir: str, file_system: CheckpointFileSystem, services: JobServices | None, job_name: str
) -> JobServices:
    recorded = read_stored_in(file_system)
    if recorded is None:
        # Other services would move the records of its checkpoints.
        return DirectoryServices()
    chosen = default_services(job_dir) if services is None else services
    check_stored_in(file_system, chosen.stored_in(job_name))
    return chosen


def roll_back_job(job: LeasedJob, roll_back_to: int | str, *, dry_run: bool) -> dict[str, Any]:
    """Roll back, or record the intent, and return the answer.

    Raises:
        CheckpointNotFoundError: The checkpoint does not exist.
        CorruptMetadataError: The checkpoint cannot be read.
        SavepointError: Sinks of a local job have to revert output, which needs the program.
    """
    found = job.records.pointers.find()
    target = found.roll_back_target(roll_back_to)
    is_spark = job.records.driver_files.exists("spark/metadata") or target.source_positions is not None
    return (_roll_back_on_spark if is_spark else _roll_back_locally)(job, found, target, roll_back_to, dry_run)


def _roll_back_locally(
    job: LeasedJob, found: FoundCheckpoints, target: CheckpointMetadata, roll_back_to: int | str, dry_run: bool
) -> dict[str, Any]:
    check_no_roll_back(job.records.driver_files)
    abandoned = [one for one in sorted(found.ids) if one > target.checkpoint_id]
    # An unreadable checkpoint does not list its sinks: use those of the readable ones.
    known = abandoned if found.retained.keys() >= set(abandoned) else list(found.retained)
    sinks = {name for one in known for name in found.retained[one].metadata.sink_committables}
    if sinks:
        raise SavepointError(
            f"the sinks {', '.join(sorted(sinks))} have written output that the rollback abandons, and only the "
            f"program of the job can revert it: start it with "
            f"execute(roll_back_to={target.checkpoint_id}). Nothing was changed"
        )
    places = () if dry_run else roll_back_now(job, found, target.checkpoint_id)
    return {
        "status": "planned" if dry_run else "done",
        "checkpoint_id": target.checkpoint_id,
        "abandoned": abandoned,
        "processed_again": "the records of these epochs, if the source can replay them",
        "set_aside": list(places),
        "next": "start the job as usual",
    }


def _roll_back_on_spark(
    job: LeasedJob, found: FoundCheckpoints, target: CheckpointMetadata, roll_back_to: int | str, dry_run: bool
) -> dict[str, Any]:
    # Import Spark only for jobs that run on it.
    from statebackend.spark.rollback import format_offsets, planned_roll_back
    from statebackend.spark.sources.offset_log import source_log_directory
    from statebackend.spark.sources.progress import newest_planned_batch
    from statebackend.streaming.runtime.checkpoint_writing import batch_of

    driver_files = job.records.driver_files
    source_log = driver_files.local_path(source_log_directory(driver_files))
    if source_log is None:
        raise SavepointError(
            f"the driver files of the job are in {driver_files.uri}, which is not a disk: pass --driver-directory"
        )
    planned, target = planned_roll_back(found, driver_files, source_log, roll_back_to)
    after = format_offsets(source_log, batch_of(target))
    before = format_offsets(source_log, newest_planned_batch(source_log))
    if not dry_run:
        write_roll_back(driver_files, planned)
    return {
        "status": "planned" if dry_run else "recorded",
        "checkpoint_id": target.checkpoint_id,
        "abandoned": list(range(planned.checkpoint_id + 1, planned.newest_id + 1)),
        "processed_again": f"the records after {after}, up to {before}" if after != before else "no records",
        "set_aside": [],
        "next": f"start the job with execute(roll_back_to={target.checkpoint_id}), which lets its sinks revert what "
        f"they have published, and sets the later epochs aside",
    }


JobDir: TypeAlias = Annotated[
    str, typer.Argument(metavar="JOB_DIR", help="The directory of a job that is not running.")
]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")]
DriverDirectory: TypeAlias = Annotated[
    str | None,
    typer.Option("--driver-directory", metavar="DIR", help="The driver directory of the job, if it has one."),
]


def gc(
    job_dir: JobDir,
    dry_run: DryRun = False,
    zookeeper: ZooKeeper = None,
    driver_directory: DriverDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Delete files that no checkpoint needs, as a start of the job does. Fails while a driver runs."""
    with lease_job(job_dir, services_of(zookeeper, stands_by=False), driver_directory) as job:
        found = find_unused(job) if dry_run else delete_unused(job)
    answer = {
        "removed": not dry_run,
        "size_bytes": found.size_bytes,
        "files": [{"path": path, "size_bytes": size} for path, size in found.files],
        "unfinished_checkpoints": list(found.directories),
        "unreadable_checkpoints": list(found.unreadable),
    }
    print_answer(as_json, answer, _print_unused)


def roll_back(
    job_dir: JobDir,
    to: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The id of a checkpoint, or `previous`.")],
    dry_run: DryRun = False,
    zookeeper: ZooKeeper = None,
    driver_directory: DriverDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Roll a job back to an older checkpoint, or record it for the next start if sinks have to revert output."""
    if to != PREVIOUS and not (to.isascii() and to.isdecimal()):
        raise typer.BadParameter(f"{to!r} is neither a checkpoint id nor {PREVIOUS!r}")
    target = to if to == PREVIOUS else int(to)
    with lease_job(job_dir, services_of(zookeeper, stands_by=False), driver_directory) as job:
        answer = roll_back_job(job, target, dry_run=dry_run)
    print_answer(as_json, answer, _print_rolled_back)


def _print_unused(printer: Printer, answer: dict[str, Any]) -> None:
    if answer["unreadable_checkpoints"]:
        unreadable = ", ".join(map(str, answer["unreadable_checkpoints"]))
        printer.line(f"no file of state is removed while checkpoints cannot be read: {unreadable}")
    found = []
    if answer["unfinished_checkpoints"]:
        found.append(f"{counted(len(answer['unfinished_checkpoints']), 'checkpoint')} that did not become complete")
    if answer["files"]:
        found.append(f"{counted(len(answer['files']), 'file')} with {format_bytes(answer['size_bytes'])}")
    done = "removed" if answer["removed"] else "would be removed"
    printer.line(f"{done}: {' and '.join(found)}" if found else "there are no unused files")
    for path in answer["unfinished_checkpoints"]:
        printer.line(f"  {path} (did not become complete)")
    for file in answer["files"]:
        printer.line(f"  {file['path']} ({format_bytes(file['size_bytes'])})")


def _print_rolled_back(printer: Printer, answer: dict[str, Any]) -> None:
    checkpoint_id = answer["checkpoint_id"]
    texts = {
        "planned": f"would roll back to checkpoint {checkpoint_id}",
        "recorded": f"the rollback to checkpoint {checkpoint_id} is recorded",
        "done": f"rolled back to checkpoint {checkpoint_id}",
    }
    printer.line(texts[answer["status"]])
    printer.pairs(
        {
            "abandoned": ", ".join(map(str, answer["abandoned"])) or "nothing",
            "processed again": answer["processed_again"],
            "set aside": ", ".join(answer["set_aside"]),
            "next": answer["next"],
        }
    )
