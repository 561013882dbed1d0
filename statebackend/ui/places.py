"""The jobs and savepoints that the page shows, and how it reads them while jobs run.

Every request reads the files again and holds no lock. A running job may delete a checkpoint between two reads. The
newest state is then looked up again; a checkpoint that was chosen by its id is reported as missing.

A path may also be a local directory of jobs and savepoints. Those directly inside it are shown. A path that does not
exist or may not be read is shown too, with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

from attrs import define, frozen

from statebackend.checkpoint.errors import CorruptFileError, MissingFileError, SavepointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.ha.services import JobServices
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.checkpoint.store.checkpoint_directories import METADATA_FILE_NAME
from statebackend.checkpoint.store.job_directory import JOB_FILE_NAME
from statebackend.savepoint.savepoint import Savepoint
from statebackend.savepoint.state_location import completed_checkpoints
from statebackend.savepoint.stored_entries import StateEntry
from statebackend.state.key_groups import KeyGroupRange

__all__ = ["EntriesPage", "Place", "Places", "entries_page"]

T = TypeVar("T")

_MOST_PLACES: Final = 500


@frozen
class Place:
    """A job directory, a savepoint or a checkpoint. ``id`` names it in addresses of the page."""

    id: str
    path: str

    @property
    def uri(self) -> str:
        """The path or URI, without credentials."""
        return CheckpointFileSystem.from_uri(self.path).uri

    @property
    def name(self) -> str:
        """The last two parts of the path."""
        return "/".join(self.uri.rstrip("/").split("/")[-2:])

    @property
    def is_job(self) -> bool:
        """Whether this is the directory of a job."""
        return CheckpointFileSystem.from_uri(self.path).exists(JOB_FILE_NAME)


class UnknownPlaceError(SavepointError, LookupError):
    """The page does not show such a job or savepoint."""


@frozen
class Places:
    """The paths that the page was started with."""

    paths: Sequence[str]
    services: JobServices | None = None

    def __iter__(self) -> Iterator[Place]:
        """Yield the jobs and savepoints that exist now."""
        return islice(self._every(), _MOST_PLACES)

    def _every(self) -> Iterator[Place]:
        for index, path in enumerate(self.paths):
            directory = CheckpointFileSystem.from_uri(path)
            place = directory.local_path()
            if place is None or not os.access(place, os.R_OK | os.X_OK) or _has_state(directory):
                yield Place(str(index), path)
                continue
            for name in sorted(directory.list_directories()):
                inside = os.path.join(place, name)
                if not os.access(inside, os.X_OK) or _has_state(CheckpointFileSystem.from_uri(inside)):
                    # A name of the file system may be no valid text. An address must be.
                    yield Place(f"{index}.{name.encode(errors='backslashreplace').decode()}", inside)

    def find(self, place_id: str) -> Place:
        """Return the place of an id.

        Raises:
            UnknownPlaceError: There is none.
        """
        for one in self:
            if one.id == place_id:
                return one
        raise UnknownPlaceError(f"this page shows no job or savepoint {place_id!r}; its first page lists them")

    def checkpoints(self, place: Place) -> Sequence[CheckpointMetadata]:
        """Return the readable checkpoints of a job, oldest first; of a savepoint only itself. Raises as `read`."""
        if not place.is_job:
            return [self.read(place, None, lambda savepoint: savepoint.metadata)]

        def read() -> Sequence[CheckpointMetadata]:
            found = completed_checkpoints(place.path, self.services)
            found.check_newest()
            return [found.retained[one].metadata for one in sorted(found.retained)]

        return _repeated(read)

    def read(self, place: Place, checkpoint_id: int | None, use: Callable[[Savepoint], T]) -> T:
        """Return the result of a function of the opened state. ``checkpoint_id`` is None for the newest.

        Raises:
            MissingFileError: A file is missing, or the job deleted the checkpoint.
            CheckpointError: The state cannot be read.
        """

        def read() -> T:
            return use(Savepoint.open(place.path, checkpoint_id, high_availability=self.services))

        if checkpoint_id is None:
            return _repeated(read)
        try:
            return read()
        except (MissingFileError, CorruptFileError):
            # If the job has deleted the checkpoint meanwhile, this raises the error that says so.
            Savepoint.open(place.path, checkpoint_id, high_availability=self.services)
            raise


def _has_state(directory: CheckpointFileSystem) -> bool:
    return directory.exists(METADATA_FILE_NAME) or directory.exists(JOB_FILE_NAME)


def _repeated(read: Callable[[], T], attempts: int = 5) -> T:
    try:
        return read()
    except (MissingFileError, CorruptFileError):
        # The job may have deleted this checkpoint since it was listed.
        if attempts == 1:
            raise
    return _repeated(read, attempts - 1)


@define
class EntriesPage:
    """Some entries of a keyed state, converted by the caller. ``next_place`` is None on the last page."""

    rows: list[Sequence[str]]
    next_place: tuple[int, int] | None = None


def entries_page(
    savepoint: Savepoint,
    operator: str,
    state: str,
    place: tuple[int, int],
    limit: int,
    row: Callable[[StateEntry], Sequence[str]],
) -> EntriesPage:
    """Return the entries after a place: a key group, and how many of its entries to skip.

    Key groups are read in growing ranges, so that a page reads little, even of a backend that restores what it reads.
    """
    start, skipped = place
    page = EntriesPage([])
    at, in_group = start, skipped
    width, groups = 1, savepoint.metadata.max_parallelism
    while start < groups:
        wanted = KeyGroupRange(start, min(start + width, groups) - 1)
        for entry in islice(iter(savepoint.read(operator, state, key_groups=wanted)), skipped, None):
            if entry.key_group != at:
                at, in_group = entry.key_group, 0
            if len(page.rows) == limit:
                page.next_place = at, in_group
                return page
            page.rows.append(row(entry))
            in_group += 1
        start, width, skipped = start + width, 16 * width, 0
    return page
