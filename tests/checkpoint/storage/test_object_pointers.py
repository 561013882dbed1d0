"""The object that names the completed checkpoints, and the order of writes to it and to the files that it names."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from attrs import define, evolve, field
from memory_objects import MemoryObjects

from statebackend.checkpoint import (
    CheckpointFileSystem,
    CorruptMetadataError,
    JobDirectoryMismatchError,
    LeadershipLostError,
    StorageError,
)
from statebackend.checkpoint.errors import UncertainCheckpointError
from statebackend.checkpoint.fs.conditional_objects import VersionedObject
from statebackend.checkpoint.ha.object_store import ObjectPointers
from statebackend.checkpoint.store.checkpoint_directories import write_metadata
from statebackend.testing.stores import checkpoint, file_handle


def test_the_record_of_another_job_is_rejected(tmp_path) -> None:
    objects = MemoryObjects()
    fs = CheckpointFileSystem.from_uri(tmp_path)
    ObjectPointers(fs, objects, "one").take_over("a", lambda record: record)
    with pytest.raises(JobDirectoryMismatchError, match="belongs to job one"):
        ObjectPointers(fs, objects, "other").take_over("b", lambda record: record)


def test_a_read_only_service_changes_nothing(tmp_path) -> None:
    pointers = ObjectPointers(CheckpointFileSystem.from_uri(tmp_path), MemoryObjects(), "job")
    with pytest.raises(LeadershipLostError, match="opened it read-only"):
        pointers.publish(checkpoint(1))
    assert list(tmp_path.iterdir()) == []


@define
class WatchedObjects:
    """The connection of a driver to the store. The next read calls the last function of ``behind_look``."""

    objects: MemoryObjects = field(factory=MemoryObjects)
    behind_look: list[Callable[[], object]] = field(factory=list)

    def read(self, path: str) -> VersionedObject | None:
        found = self.objects.read(path)
        if self.behind_look:
            self.behind_look.pop()()
        return found

    def write(self, path: str, content: bytes, version: str | None) -> str | None:
        return self.objects.write(path, content, version)


def test_a_leader_that_is_replaced_during_recovery_gets_that_error_and_not_a_damage_report(tmp_path) -> None:
    fs, objects = CheckpointFileSystem.from_uri(tmp_path), WatchedObjects()
    former = ObjectPointers(fs, objects, "job")
    former.take_over("former", lambda record: record)
    former.publish(checkpoint(1))

    def overtake() -> None:
        latter = ObjectPointers(fs, objects.objects, "job")
        latter.take_over("latter", lambda record: record)
        latter.withdraw(1)

    objects.behind_look.append(overtake)
    with pytest.raises(LeadershipLostError, match="another driver has acquired"):
        former.find()


def test_writing_ends_with_an_error_if_every_write_is_rejected(tmp_path) -> None:
    objects = MemoryObjects()
    pointers = ObjectPointers(CheckpointFileSystem.from_uri(tmp_path), objects, "job")
    pointers.take_over("a", lambda record: record)
    # Behave like a store that implements conditions differently.
    objects.before_write = lambda path, content: objects.stored.by_path.update(
        {path: evolve(objects.stored.by_path[path], version=uuid.uuid4().hex)}
    )
    with pytest.raises(UncertainCheckpointError, match="its versions change"):
        pointers.publish(checkpoint(1))


def leading(fs: CheckpointFileSystem, objects: MemoryObjects) -> ObjectPointers:
    pointers = ObjectPointers(fs, objects, "job")
    pointers.take_over("a", lambda record: record)
    return pointers


def test_checkpoint_files_exist_before_they_are_named_and_until_they_are_not(tmp_path) -> None:
    fs, objects, there = CheckpointFileSystem.from_uri(tmp_path), MemoryObjects(), list[int]()
    pointers = leading(fs, objects)
    objects.before_write = lambda path, content: there.append(len(fs.list_files("checkpoints")))
    pointers.publish(checkpoint(1))
    pointers.withdraw(1)
    assert there == [1, 1]
    assert fs.list_files("checkpoints") == ()


def test_no_two_writes_are_equal_whatever_happened_to_the_first(tmp_path) -> None:
    objects, contents = MemoryObjects(), list[bytes]()
    pointers = leading(CheckpointFileSystem.from_uri(tmp_path), objects)
    pointers.publish(checkpoint(1))

    def lose_requests(path: str, content: bytes) -> None:
        contents.append(content)
        if len(contents) < 3:
            raise StorageError("nobody knows")

    objects.before_write = lose_requests
    for _ in range(2):
        with pytest.raises(StorageError, match="nobody knows"):
            pointers.withdraw(1)
    pointers.withdraw(1)
    assert len(contents) == len(set(contents)) == 3
    assert dict(pointers.find().retained) == {}


def test_another_file_of_the_same_id_is_not_the_completed_checkpoint(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    pointers = leading(fs, MemoryObjects())
    completed = pointers.publish(checkpoint(1, [file_handle("shared/a")]))
    fs.delete(completed.path)
    write_metadata(fs, completed.path.rpartition("/")[0], checkpoint(1, [file_handle("shared/b")]))
    found = pointers.find()
    assert dict(found.retained) == {}
    with pytest.raises(CorruptMetadataError, match="is not the file that was completed"):
        raise found.unreadable[1]
