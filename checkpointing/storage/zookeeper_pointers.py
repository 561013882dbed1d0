"""Completed checkpoints noted in ZooKeeper: the form of `CheckpointPointers` for drivers that may lose leadership.

    checkpoints/chk-<id>-<32 hex>/_metadata   written first, under a name that nobody gives again
    <root>/<job>/checkpoints/<id>             the pointer; from here on the checkpoint is complete
    <root>/<job>/set-aside/<id>-<n>           the pointer of one that was given up; its files stay where they are

Every change is one transaction that asks whether its driver leads (`ZooKeeperLeadership.commit`), and that a repetition
finds to be done: a pointer has the name of a file that only one attempt has written. Withdrawing goes from the pointer
to the files, so a crash leaves files without a pointer, which the next recovery removes, and no pointer without files.

Flink locks nodes that are in use, since several of its processes read and remove them. Here only the leader removes,
and a driver that has lost its leadership may find the files gone that it was still reading: an error, and no loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from checkpointing.errors import (
    CheckpointError,
    CorruptMetadataError,
    LeadershipLostError,
    StorageError,
    UncertainCheckpointError,
)
from checkpointing.handles.state_handles import FileHandle
from checkpointing.metadata.checkpoint_metadata import CheckpointMetadata
from checkpointing.storage.checkpoint_directories import DirectoryPointers
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.found_checkpoints import FoundCheckpoints, RetainedCheckpoint
from checkpointing.storage.metadata_file import read_metadata
from checkpointing.storage.pointed_metadata import (
    CheckpointPointer,
    delete_pointed_metadata,
    read_pointed_metadata,
    unnamed_directories,
    write_pointed_metadata,
)
from checkpointing.storage.zookeeper_leadership import ZooKeeperLeadership
from checkpointing.storage.zookeeper_nodes import JobNodes, decode_pointer, decode_text, encode_pointer, encode_text
from checkpointing.storage.zookeeper_session import UnknownOutcomeError, ZooKeeperSession

if TYPE_CHECKING:
    from kazoo.client import TransactionRequest

__all__ = ["ZooKeeperPointers"]

_LOOKS: Final = 10


class ZooKeeperPointers:
    """Those of one job. Without `leadership` they can be looked at, and nothing else."""

    def __init__(
        self,
        file_system: CheckpointFileSystem,
        nodes: JobNodes,
        session: ZooKeeperSession,
        leadership: ZooKeeperLeadership | None = None,
    ) -> None:
        self._fs = file_system
        self._nodes = nodes
        self._session = session
        self._leadership = leadership
        self._pointers: dict[int, bytes] = {}

    @property
    def place(self) -> str:
        """The node of the checkpoints, and where its servers are."""
        return self._where(self._nodes.checkpoints)

    def find(self) -> FoundCheckpoints:
        """See `CheckpointPointers`. A leader may drop checkpoints while another driver looks, which looks again."""
        for _ in range(_LOOKS):
            pointers = self._read()
            found = self._found(pointers)
            if not found.unreadable or pointers == self._read():
                break
        self._pointers = pointers
        return found

    def publish(self, metadata: CheckpointMetadata) -> FileHandle:
        """Write the metadata under a name of its own, then make the pointer and raise the greatest id, in one step."""
        checkpoint_id = metadata.checkpoint_id
        leadership, node = self._leading(), self._nodes.checkpoint(metadata.checkpoint_id)
        pointer = write_pointed_metadata(self._fs, metadata)
        data = encode_pointer(pointer)
        last_id = max(checkpoint_id, self._last_id())

        def build(transaction: TransactionRequest) -> None:
            transaction.create(node, data)
            transaction.set_data(self._nodes.last_id, encode_text(last_id))

        try:
            obstacle = leadership.commit(
                f"complete checkpoint {checkpoint_id}", build, lambda: self._session.get(node) == data
            )
        except UnknownOutcomeError as error:
            raise UncertainCheckpointError(
                f"whether checkpoint {checkpoint_id} is complete is not known, and is found at the next start; nothing "
                f"is lost. {error}"
            ) from error
        if obstacle is not None:
            # It was refused, so nobody will ever point there.
            with contextlib.suppress(CheckpointError):
                self._fs.delete_directory(pointer.directory)
            raise StorageError(
                f"checkpoint {checkpoint_id} cannot be completed: {self._where(node)} cannot be made "
                f"({type(obstacle).__name__}). Another program may have changed what is there"
            ) from obstacle
        self._pointers[checkpoint_id] = data
        return pointer.metadata_file

    def withdraw(self, checkpoint_id: int) -> None:
        """Delete the pointer, then the metadata file with its directory.

        Where that fails it is known as before, and may be withdrawn again.
        """
        node = self._nodes.checkpoint(checkpoint_id)
        pointer = self._pointer(checkpoint_id)
        self._change(
            f"drop checkpoint {checkpoint_id}",
            lambda transaction: transaction.delete(node),
            lambda: not self._session.exists(node),
        )
        if pointer is not None:
            delete_pointed_metadata(self._fs, pointer)
        self._pointers.pop(checkpoint_id, None)

    def set_aside(self, checkpoint_id: int) -> None:
        """Move the pointer, in one step."""
        node, data = self._nodes.checkpoint(checkpoint_id), self._pointers[checkpoint_id]
        taken = self._session.children(self._nodes.set_aside)
        base = f"{checkpoint_id:012d}"
        name = next(f"{base}-{number}" for number in range(1, len(taken) + 2) if f"{base}-{number}" not in taken)

        def build(transaction: TransactionRequest) -> None:
            transaction.delete(node)
            transaction.create(f"{self._nodes.set_aside}/{name}", data)

        self._change(f"set checkpoint {checkpoint_id} aside", build, lambda: not self._session.exists(node))
        del self._pointers[checkpoint_id]

    def set_aside_places(self) -> tuple[str, ...]:
        """The nodes, and the directories from before the job had any."""
        names = [name for name in self._session.children(self._nodes.set_aside) if self._nodes.id_set_aside(name)]
        nodes = (self._where(f"{self._nodes.set_aside}/{name}") for name in names)
        return (*DirectoryPointers(self._fs).set_aside_places(), *nodes)

    def files_set_aside(self) -> frozenset[str]:
        """Those that their metadata files name, and these."""
        paths = set(DirectoryPointers(self._fs).files_set_aside())
        for pointer in self._set_aside():
            # What cannot be read, for which it was given up, does not tell its files.
            with contextlib.suppress(CheckpointError):
                metadata = read_metadata(self._fs, pointer.directory)
                paths.update(file.path for file in metadata.files)
        return frozenset(paths)

    def _read(self) -> dict[int, bytes]:
        self._session.sync(self._nodes.directory)
        pointers: dict[int, bytes] = {}
        for name in self._session.children(self._nodes.checkpoints):
            checkpoint_id = self._nodes.id_of(name)
            data = None if checkpoint_id is None else self._session.get(f"{self._nodes.checkpoints}/{name}")
            if checkpoint_id is not None and data is not None:
                pointers[checkpoint_id] = data
        return pointers

    def _found(self, pointers: dict[int, bytes]) -> FoundCheckpoints:
        retained: dict[int, RetainedCheckpoint] = {}
        unreadable: dict[int, CorruptMetadataError] = {}
        for checkpoint_id, data in pointers.items():
            found = self._retained(checkpoint_id, data)
            if isinstance(found, RetainedCheckpoint):
                retained[checkpoint_id] = found
            else:
                unreadable[checkpoint_id] = found
        unfinished = list(self._unfinished(pointers))
        ids = [*pointers, *self._ids_set_aside(), *(found for _, found in unfinished)]
        last_id = self._last_id()
        if last_id >= 0:
            ids.append(last_id)
        return FoundCheckpoints(
            self._fs, self.place, retained, unreadable, [name for name, _ in unfinished], max(ids, default=None)
        )

    def _retained(self, checkpoint_id: int, data: bytes) -> RetainedCheckpoint | CorruptMetadataError:
        """The checkpoint of a pointer, or what is wrong with it."""
        kept_at = self._where(self._nodes.checkpoint(checkpoint_id))
        try:
            pointer = decode_pointer(data, checkpoint_id, kept_at)
        except CorruptMetadataError as error:
            return error
        return read_pointed_metadata(self._fs, pointer, kept_at)

    def _unfinished(self, pointers: Mapping[int, bytes]) -> Iterator[tuple[str, int]]:
        """The directories, with their ids, that no pointer names, nor one of a checkpoint that was given up.

        None as long as there is one that cannot be read: what it names cannot be told from them.
        """
        try:
            noted = [*self._set_aside(), *(decode_pointer(data, one, "") for one, data in pointers.items())]
        except CorruptMetadataError:
            return iter(())
        return unnamed_directories(self._fs, noted)

    def _set_aside(self) -> Iterator[CheckpointPointer]:
        for name in self._session.children(self._nodes.set_aside):
            node = f"{self._nodes.set_aside}/{name}"
            checkpoint_id = self._nodes.id_set_aside(name)
            data = None if checkpoint_id is None else self._session.get(node)
            if checkpoint_id is not None and data is not None:
                yield decode_pointer(data, checkpoint_id, self._where(node))

    def _ids_set_aside(self) -> Iterable[int]:
        ids = map(self._nodes.id_set_aside, self._session.children(self._nodes.set_aside))
        return [checkpoint_id for checkpoint_id in ids if checkpoint_id is not None]

    def _last_id(self) -> int:
        """-1 if there was no checkpoint yet."""
        data = self._session.get(self._nodes.last_id)
        return -1 if data is None else int(decode_text(data, self._where(self._nodes.last_id), int))

    def _pointer(self, checkpoint_id: int) -> CheckpointPointer | None:
        """None if it cannot be read: its files cannot be told from those of an attempt, and go with these."""
        with contextlib.suppress(CorruptMetadataError):
            return decode_pointer(self._pointers[checkpoint_id], checkpoint_id, "")
        return None

    def _change(self, what: str, build: Callable[[TransactionRequest], object], is_done: Callable[[], bool]) -> None:
        obstacle = self._leading().commit(what, build, is_done)
        if obstacle is not None and not is_done():
            raise StorageError(f"cannot {what} in {self.place}: {type(obstacle).__name__} {obstacle}") from obstacle

    def _leading(self) -> ZooKeeperLeadership:
        if self._leadership is None:
            raise LeadershipLostError(f"nobody leads job {self._nodes.job_name!r} here: it is only looked at")
        return self._leadership

    def _where(self, node: str) -> str:
        return f"zookeeper:{node} ({self._session.hosts})"
