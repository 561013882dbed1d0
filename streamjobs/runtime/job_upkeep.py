"""Work on the directory of a job that does not run, without its program: clearing up, and going back.

Whoever does it leads the job meanwhile, by the services that the job is led by, so that no driver runs beside it; one
that does is named, and nothing is touched.

*Clearing up* is what a start does before its first epoch: checkpoints that did not become complete go, then the files
that no completed checkpoint refers to and none that was given up, then restore plans. Files of a checkpoint that cannot
be read cannot be told from those, so no file of state goes as long as there is one.

*Going back* needs the program where sinks have shown what is given up, or may have: only they can take it back. What
this does then is the first step of `execute(fall_back_to=...)`: the intent is written down, no other start is possible
from then on, and the start that says the same takes all steps. Where no sink has anything to take back, and the job is
one of this process, which has no log of its sources, all is done at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from attrs import evolve, frozen

from checkpointing.errors import CheckpointNotFoundError, MissingFileError
from checkpointing.storage.checkpoint_directories import SHARED_DIRECTORY
from checkpointing.storage.default_checkpoint_store import DefaultCompletedCheckpointStore
from checkpointing.storage.default_services import default_services
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.found_checkpoints import FoundCheckpoints
from checkpointing.storage.high_availability_file import check_kept_in, read_kept_in
from checkpointing.storage.job_directory import JOB_FILE_NAME, JobDirectory
from checkpointing.storage.job_services import DirectoryServices, JobRecords, JobServices
from checkpointing.storage.leadership import telling_of_loss
from checkpointing.storage.metadata_file import METADATA_FILE_NAME
from streamjobs.runtime.restore_plan_file import RESTORE_PLANS_DIRECTORY, delete_restore_plans

__all__ = ["LedJob", "Needless", "clear_up", "go_back_at_once", "led_job", "needless"]


@frozen
class LedJob:
    """A job that is led for as long as the context lasts; ``store`` has found nothing yet."""

    directory: JobDirectory
    records: JobRecords
    store: DefaultCompletedCheckpointStore


@frozen
class Needless:
    """What nobody needs: files with their sizes, and directories of checkpoints that did not become complete.

    ``unreadable`` are the checkpoints that keep all files of state there as long as they cannot be read.
    """

    files: Sequence[tuple[str, int]]
    directories: Sequence[str]
    unreadable: Sequence[int]

    @property
    def size_bytes(self) -> int:
        """Of the files."""
        return sum(size for _, size in self.files)


@contextmanager
def led_job(job_dir: str, services: JobServices | None = None, driver_directory: str | None = None) -> Iterator[LedJob]:
    """Leads the job of a directory; by default as one that was told nothing.

    ``driver_directory`` is that of the job, if it has one. Raises `CheckpointNotFoundError` where there is no job,
    `JobDirectoryMismatchError` for services that are not its own, and `JobDirectoryLockedError` while a driver runs.
    """
    file_system = CheckpointFileSystem.from_uri(job_dir)
    identity = JobDirectory.inspect(job_dir) if file_system.exists(JOB_FILE_NAME) else None
    if identity is None:
        raise CheckpointNotFoundError(f"{file_system.uri} {_why_no_job(file_system)}. Nothing was changed")
    led_by = _services_of(job_dir, file_system, services, identity.job_name)
    if driver_directory is not None:
        led_by = led_by.with_driver_directory(driver_directory)
    with (
        JobDirectory.open(
            job_dir,
            identity.job_name,
            identity.max_parallelism,
            leadership=led_by,
            kept_in=led_by.kept_in(identity.job_name),
        ) as directory,
        telling_of_loss(directory.leadership),
    ):
        records = led_by.take_over(directory)
        store = DefaultCompletedCheckpointStore(file_system, records.pointers, leadership=directory.leadership)
        yield LedJob(directory, records, store)


def needless(job: LedJob) -> Needless:
    """What `clear_up` would remove; touches nothing."""
    found, file_system = job.records.pointers.find(), job.records.file_system
    needed = {file.path for one in found.retained.values() for file in one.metadata.files}
    needed |= job.records.pointers.files_set_aside()
    present = () if found.unreadable else file_system.list_files(SHARED_DIRECTORY, include_temporary=True)
    plans = file_system.list_files(RESTORE_PLANS_DIRECTORY, include_temporary=True)
    paths = [*(path for path in present if path not in needed), *plans]
    sizes = [(path, _size_bytes(file_system, path)) for path in paths]
    return Needless(sizes, tuple(found.unfinished), sorted(found.unreadable))


def _size_bytes(file_system: CheckpointFileSystem, path: str) -> int:
    try:
        return file_system.size(path)
    except MissingFileError:
        # A link, a pipe, or a file that somebody has deleted since.
        return 0


def clear_up(job: LedJob) -> Needless:
    """Removes what nobody needs, as a start does, and says what that was.

    Raises `CorruptMetadataError` if the newest checkpoint cannot be read.
    """
    judged = needless(job)
    job.store.recover()
    job.store.delete_orphans()
    delete_restore_plans(job.records.file_system, job.directory.leadership)
    left = needless(job)
    # What could not be deleted is left to another time.
    return evolve(
        judged,
        files=[one for one in judged.files if one not in left.files],
        directories=[one for one in judged.directories if one not in left.directories],
    )


def go_back_at_once(job: LedJob, found: FoundCheckpoints, checkpoint_id: int) -> Sequence[str]:
    """Lets an older checkpoint be the newest; returns where those are that are given up.

    Only for a job of this process, none of whose sinks has shown anything.
    """
    before = frozenset(job.store.set_aside_places())
    job.store.recover(fall_back_to=checkpoint_id)
    return [place for place in job.store.set_aside_places() if place not in before]


def _why_no_job(file_system: CheckpointFileSystem) -> str:
    absent = file_system.why_absent()
    if absent is not None:
        return f"{absent}; give the directory of a job"
    if file_system.exists(METADATA_FILE_NAME):
        return (
            "is a savepoint, or one checkpoint: nothing in it is needless, and it goes back to nothing older; give the "
            "directory of the job"
        )
    return f"is no job directory: it has no file {JOB_FILE_NAME}; give the directory that the job was started with"


def _services_of(
    job_dir: str, file_system: CheckpointFileSystem, services: JobServices | None, job_name: str
) -> JobServices:
    said = read_kept_in(file_system)
    if said is None:
        # Leading it in another way for the first time would move its checkpoints there.
        return DirectoryServices()
    chosen = default_services(job_dir) if services is None else services
    check_kept_in(file_system, chosen.kept_in(job_name))
    return chosen
