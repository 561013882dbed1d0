"""The contract of snapshots and their restore, at the same and at another parallelism."""

from __future__ import annotations

import os
from typing import Any

import pytest
from attrs import evolve

from snapshots import envelope
from snapshots.envelope import snapshot_class_for, snapshot_to_bytes
from snapshots.errors import UnknownSnapshotError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from statebackend.checkpoint.errors import CheckpointError, CorruptFileError, MissingFileError
from statebackend.checkpoint.state_handles import KeyedStateHandle
from statebackend.state.canonical import CanonicalBatch
from statebackend.state.errors import StateMigrationException, StateRestoreError
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.key_groups import KeyGroupRange, key_group_range_of_subtask, subtask_of_key_group
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.list_state import ListStateDescriptor
from statebackend.state.map_state import MapStateDescriptor
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.state.state_backend import StateBackend
from statebackend.state.state_files import MAX_FILES
from statebackend.state.state_meta import decode_meta
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.testing.backends.evolving_serializers import WordSerializer, WordSerializerSnapshot
from statebackend.testing.backends.harness import (
    LIST,
    MAP,
    VALUE,
    BackendHarness,
    ContractBase,
    content,
    contents,
    fill,
    filled,
)

KEYS = range(40)
WORDS = WordSerializer("red", "green")


class SnapshotContract(ContractBase):
    """Snapshots and restores at the same parallelism."""

    @pytest.fixture
    def state_backend(self) -> StateBackend:
        """The backend under test."""
        return self.create_state_backend()

    def test_an_operator_without_state_has_snapshots_too(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        snapshot = harness.snapshot(backend)
        assert (snapshot.entries_written, snapshot.bytes_written, snapshot.handle.files) == (0, 0, ())
        restored = self.reopen(harness, snapshot.handle)
        assert restored.get_state(VALUE).value() is None

    def test_a_registered_state_without_entries_is_restored(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        backend.get_state(VALUE)
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        assert [state.name for state in restored.current_meta().states] == ["value"]
        assert restored.get_state(VALUE).value() is None

    def test_every_snapshot_restores_the_state_of_its_epoch(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        handles = []
        for epoch in range(3):
            fill(harness, backend, KEYS, epoch)
            handles.append(harness.snapshot(backend).handle)
        fill(harness, backend, KEYS, 99)
        for epoch, handle in enumerate(handles):
            assert contents(harness, self.reopen(harness, handle)) == filled(KEYS, *range(epoch + 1))

    def test_a_restored_backend_continues_like_the_one_it_replaces(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        for epoch in range(4):
            fill(harness, backend, KEYS, epoch)
            handle = harness.snapshot(backend).handle
            backend.close()
            backend = self.reopen(harness, handle)
        assert contents(harness, backend) == filled(KEYS, 0, 1, 2, 3)

    def test_a_snapshot_has_no_later_changes(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        fill(harness, backend, KEYS)
        handle = harness.snapshot(backend).handle
        for key in KEYS:
            harness.at(backend, key)
            backend.get_state(VALUE).clear()
            backend.get_state(LIST).add(5)
            backend.get_state(MAP).remove("key")
        harness.snapshot(backend)
        assert contents(harness, self.reopen(harness, handle)) == filled(KEYS, 0)

    def test_removals_are_part_of_an_increment(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        fill(harness, backend, KEYS)
        harness.snapshot(backend)
        for key in range(0, 40, 2):
            harness.at(backend, key)
            backend.get_state(VALUE).clear()
            backend.get_state(LIST).clear()
            backend.get_state(MAP).clear()
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        odd = range(1, 40, 2)
        assert contents(harness, restored) == filled(odd, 0)

    def test_restored_state_without_changes_is_in_the_next_snapshot(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        fill(harness, backend, KEYS)
        handle = harness.snapshot(backend).handle
        for registers in (True, False, True):
            restored = self.reopen(harness, handle)
            if registers:
                restored.get_state(VALUE)
            handle = harness.snapshot(restored).handle
        assert contents(harness, self.reopen(harness, handle)) == filled(KEYS, 0)

    def test_an_unregistered_state_keeps_its_bytes_and_its_old_snapshot(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        fill(harness, backend, KEYS)
        old_rows, old_meta = _rows(backend, "value"), backend.current_meta().state("value")
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        other: ValueStateDescriptor[str] = ValueStateDescriptor("other", str)
        restored.get_state(other).update("new")
        handle = harness.snapshot(restored).handle
        exported = harness.export(restored)
        for carried in (handle, exported):
            again = self.reopen(harness, carried)
            meta = again.current_meta().state("value")
            assert old_meta is not None
            assert meta is not None
            assert _snapshots(meta) == _snapshots(old_meta)
            assert _rows(again, "value") == old_rows
            assert contents(harness, again) == filled(KEYS, 0)
            harness.at(again, 1)
            assert again.get_state(other).value() == "new"

    @pytest.mark.parametrize("is_class_gone", [False, True])
    def test_an_unregistered_state_needs_no_serializer(
        self,
        harness: BackendHarness,
        backend: KeyedStateBackend,
        monkeypatch: pytest.MonkeyPatch,
        is_class_gone: bool,
    ) -> None:
        def is_gone(snapshot: WordSerializerSnapshot) -> WordSerializer:
            raise LookupError("the class of the serializer is gone")

        def class_unless_gone(name: str) -> type[TypeSerializerSnapshot[Any]]:
            if name.endswith("WordSerializerSnapshot"):
                raise UnknownSnapshotError(f"{name} is gone")
            return snapshot_class_for(name)

        descriptors: list[Any] = [
            ValueStateDescriptor("word", WORDS),
            ListStateDescriptor("words", WORDS),
            MapStateDescriptor("words by word", WORDS, WORDS),
        ]
        fill(harness, backend, KEYS)
        word, words, by_word = (backend.get_state(descriptor) for descriptor in descriptors)
        for key in KEYS:
            harness.at(backend, key)
            word.update("red")
            words.add("green")
            by_word.put("green", "red")
        handle = harness.snapshot(backend).handle
        with monkeypatch.context() as patch:
            if is_class_gone:
                patch.setattr(envelope, "snapshot_class_for", class_unless_gone)
            else:
                patch.setattr(WordSerializerSnapshot, "restore_serializer", is_gone)
            for as_savepoint in (False, True, False):
                carrying = self.reopen(harness, handle)
                assert contents(harness, carrying) == filled(KEYS, 0)
                assert sorted(carrying.get_keys("words by word")) == list(KEYS)
                if is_class_gone:
                    with pytest.raises(StateMigrationException, match=r"unknown-snapshot.*importable again"):
                        carrying.get_state(descriptors[0])
                handle = harness.export(carrying) if as_savepoint else harness.snapshot(carrying).handle
        restored = self.reopen(harness, handle)
        assert [content(harness, restored, descriptor) for descriptor in descriptors] == [
            dict.fromkeys(KEYS, "red"),
            {key: ["green"] for key in KEYS},
            {key: {"green": "red"} for key in KEYS},
        ]

    def test_an_unregistered_state_has_keys(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        fill(harness, backend, KEYS)
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        assert sorted(restored.get_keys("map")) == list(KEYS)

    def test_an_epoch_writes_its_changes(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        state = backend.get_state(VALUE)
        for key in range(30_000):
            harness.at(backend, key)
            state.update(key * 7919 % 1_000_003)
        full = harness.snapshot(backend)
        for key in range(0, 30_000, 100):
            harness.at(backend, key)
            state.update(-key)
        increment = harness.snapshot(backend)
        assert (full.entries_written, increment.entries_written) == (30_000, 300)
        assert increment.bytes_written < full.bytes_written * 0.04
        assert set(full.handle.files) < set(increment.handle.files)
        nothing = harness.snapshot(backend)
        assert (nothing.entries_written, nothing.bytes_written) == (0, 0)
        assert nothing.handle.files == increment.handle.files
        restored = self.reopen(harness, nothing.handle)
        expected = {key: -key if key % 100 == 0 else key * 7919 % 1_000_003 for key in range(30_000)}
        assert content(harness, restored, VALUE) == expected

    def test_the_number_of_files_stays_bounded(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        state = backend.get_state(VALUE)
        expected = {}
        for epoch in range(MAX_FILES + 12):
            harness.at(backend, epoch % 7)
            state.update(epoch)
            expected[epoch % 7] = epoch
            handle = harness.snapshot(backend).handle
            assert len(handle.files) <= MAX_FILES + 1
        assert len(handle.files) < MAX_FILES
        assert content(harness, backend, VALUE) == expected
        assert content(harness, self.reopen(harness, handle), VALUE) == expected

    def test_the_digest_depends_on_the_changes_only(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        fill(harness, backend, KEYS)
        base = harness.snapshot(backend).handle
        fill(harness, backend, KEYS, 1)
        first = harness.snapshot(backend).digest
        replayed = self.reopen(harness, base)
        fill(harness, replayed, KEYS, 1)
        assert harness.snapshot(replayed).digest == first
        other = self.reopen(harness, base)
        fill(harness, other, KEYS, 2)
        assert harness.snapshot(other).digest != first

    def test_a_canonical_savepoint_restores_everything(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        fill(harness, backend, KEYS)
        harness.snapshot(backend)
        fill(harness, backend, KEYS, 1)
        restored = self.reopen(harness, harness.export(backend))
        assert contents(harness, restored) == filled(KEYS, 0, 1)
        fill(harness, restored, KEYS, 2)
        again = self.reopen(harness, harness.snapshot(restored).handle)
        assert contents(harness, again) == filled(KEYS, 0, 1, 2)

    def test_the_first_snapshot_after_a_savepoint_does_not_depend_on_it(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        fill(harness, backend, KEYS)
        exported = harness.export(backend)
        restored = self.reopen(harness, exported)
        restored.get_state(VALUE)
        handle = harness.snapshot(restored).handle
        for file in exported.files:
            os.unlink(harness.store_path(file.path))
        assert contents(harness, self.reopen(harness, handle)) == filled(KEYS, 0)

    def test_an_export_does_not_end_an_epoch(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        fill(harness, backend, KEYS)
        harness.export(backend)
        fill(harness, backend, range(40, 50))
        handle = harness.snapshot(backend).handle
        assert contents(harness, self.reopen(harness, handle)) == filled(range(50), 0)

    @pytest.mark.parametrize("other", [HeapStateBackend(), RocksDBStateBackend()], ids=lambda other: other.name)
    def test_savepoints_move_to_another_backend_and_back(
        self, harness: BackendHarness, backend: KeyedStateBackend, other: StateBackend
    ) -> None:
        fill(harness, backend, KEYS)
        rows = [_rows(backend, name) for name in ("value", "list", "map")]
        there = harness.open(other, harness.export(backend))
        assert [_rows(there, name) for name in ("value", "list", "map")] == rows
        fill(harness, there, KEYS, 1)
        back = self.reopen(harness, harness.export(there))
        assert contents(harness, back) == filled(KEYS, 0, 1)

    def test_the_native_format_of_another_backend_is_rejected(
        self, harness: BackendHarness, backend: KeyedStateBackend, state_backend: StateBackend
    ) -> None:
        fill(harness, backend, KEYS)
        handle = evolve(harness.snapshot(backend).handle, backend="someone-else")
        with pytest.raises(StateRestoreError, match=r"'someone-else'.*savepoint"):
            harness.open(state_backend, handle)

    @pytest.mark.parametrize("canonical", [False, True])
    @pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
    def test_an_error_names_the_damaged_file_and_nothing_is_restored(
        self, harness: BackendHarness, backend: KeyedStateBackend, damage: str, canonical: bool
    ) -> None:
        fill(harness, backend, KEYS)
        harness.snapshot(backend)
        fill(harness, backend, KEYS, 1)
        handle = harness.export(backend) if canonical else harness.snapshot(backend).handle
        backend.close()
        for file in handle.files:
            path = harness.store_path(file.path)
            with open(path, "rb") as stream:
                original = stream.read()
            os.unlink(path)
            if damage != "missing":
                with open(path, "wb") as stream:
                    stream.write(_damaged(original, damage))
            with pytest.raises(CheckpointError) as caught:
                contents(harness, harness.open(self.create_state_backend(), handle, local="damaged"))
            assert file.path in str(caught.value)
            assert isinstance(caught.value, MissingFileError if damage == "missing" else CorruptFileError)
            harness.close()
            with open(path, "wb") as stream:
                stream.write(original)
        repaired = harness.open(self.create_state_backend(), handle, local="damaged")
        assert contents(harness, repaired) == filled(KEYS, 0, 1)

    def test_damaged_metadata_is_rejected(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        fill(harness, backend, KEYS)
        handle = harness.snapshot(backend).handle
        for meta in (b"", handle.meta[:-1], handle.meta + b"\0", b"\xff" + handle.meta[1:]):
            with pytest.raises(StateRestoreError):
                self.reopen(harness, evolve(handle, meta=meta))
        with pytest.raises(StateRestoreError, match="refers to file"):
            self.reopen(
                harness, KeyedStateHandle(handle.state_id, handle.backend, 0, 9, handle.meta, handle.files[:-1])
            )

    def test_the_metadata_maps_files_to_states(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        fill(harness, backend, KEYS)
        first = harness.snapshot(backend).handle
        fill(harness, backend, KEYS, 1)
        second = harness.snapshot(backend).handle
        state = decode_meta(second.meta, len(second.files)).state("map")
        assert state is not None
        assert [file.written_by for file in state.files] == [first.state_id, second.state_id]


def _damaged(original: bytes, damage: str) -> bytes:
    if damage == "truncated":
        return original[: len(original) // 2]
    middle = len(original) // 2
    return original[:middle] + bytes([original[middle] ^ 0x10]) + original[middle + 1 :]


def _rows(backend: KeyedStateBackend, name: str) -> list[tuple[Any, ...]]:
    """The rows of a state in canonical form; checks that they are sorted."""
    batches: list[CanonicalBatch] = list(backend.export_state(name))
    rows = [row for batch in batches for row in zip(*batch, strict=True)]
    assert [row[:4] for row in rows] == sorted((row[:4] for row in rows), key=lambda row: (*row[:3], row[3] or b""))
    return rows


def _snapshots(meta: Any) -> dict[str, bytes]:
    return {role: snapshot_to_bytes(snapshot) for role, snapshot in meta.role_snapshots.items()}


class RescaleContract(ContractBase):
    """Restores at another parallelism."""

    @pytest.mark.parametrize("canonical", [False, True])
    @pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (2, 2), (1, 3), (3, 2)])
    def test_every_key_is_found_by_the_subtask_that_now_owns_it(
        self, harness: BackendHarness, before: int, after: int, canonical: bool
    ) -> None:
        keys = range(60)
        handles = []
        for subtask in range(before):
            backend = harness.open(self.create_state_backend(), subtask=subtask, parallelism=before)
            own = [key for key in keys if subtask_of_key_group(harness.key_group(key), before, 10) == subtask]
            for epoch in range(2):
                fill(harness, backend, own, epoch)  # type: ignore[arg-type]
                handle = harness.snapshot(backend).handle
            handles.append(harness.export(backend, f"part-{subtask}") if canonical else handle)
        found: tuple[dict[int, object], ...] = ({}, {}, {})
        for subtask in range(after):
            chosen = _overlapping(handles, subtask, after, 10)
            backend = harness.open(self.create_state_backend(), *chosen, subtask=subtask, parallelism=after)
            for restored, everything in zip(contents(harness, backend), found, strict=True):
                assert not restored.keys() & everything.keys()
                everything.update(restored)
        assert found == filled(keys, 0, 1)

    def test_the_first_snapshot_after_rescaling_has_the_keys_of_its_subtask(self, harness: BackendHarness) -> None:
        whole = harness.open(self.create_state_backend())
        fill(harness, whole, range(60))
        handle = harness.snapshot(whole).handle
        half = harness.open(self.create_state_backend(), handle, subtask=1, parallelism=2)
        half.get_state(VALUE)
        own = harness.snapshot(half)
        assert own.handle.key_group_start == 5
        assert not set(own.handle.files) & set(handle.files)
        again = harness.open(self.create_state_backend(), own.handle, subtask=1, parallelism=2)
        assert contents(harness, again) == filled([key for key in range(60) if key % 10 >= 5], 0)  # type: ignore[arg-type]
        unchanged = harness.snapshot(again)
        assert (unchanged.bytes_written, unchanged.handle.files) == (0, own.handle.files)

    @pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (2, 2), (5, 19), (19, 5)])
    def test_every_key_group_may_have_another_state(self, harness: BackendHarness, before: int, after: int) -> None:
        harness.max_parallelism = 32
        handles = []
        for subtask in range(before):
            backend = harness.open(self.create_state_backend(), subtask=subtask, parallelism=before)
            for group in key_group_range_of_subtask(subtask, before, 32):
                backend.set_current_key(group, group)
                backend.get_state(_named(f"state-{group}")).update(group)
            handles.append(harness.snapshot(backend).handle)
            backend.close()
        found: dict[tuple[str, Any], int | None] = {}
        for subtask in range(after):
            chosen = _overlapping(handles, subtask, after, 32)
            backend = harness.open(self.create_state_backend(), *chosen, subtask=subtask, parallelism=after)
            names = {state.name for handle in chosen for state in decode_meta(handle.meta, len(handle.files)).states}
            for name in names:
                for key in backend.get_keys(name):
                    backend.set_current_key(key, key)
                    found[name, key] = backend.get_state(_named(name)).value()
            backend.close()
        assert found == {(f"state-{group}", group): group for group in range(32)}


def _named(name: str) -> ValueStateDescriptor[int]:
    return ValueStateDescriptor(name, int)


def _overlapping(
    handles: list[KeyedStateHandle], subtask: int, parallelism: int, max_parallelism: int
) -> list[KeyedStateHandle]:
    wanted = key_group_range_of_subtask(subtask, parallelism, max_parallelism)
    return [
        handle for handle in handles if wanted.overlaps(KeyGroupRange(handle.key_group_start, handle.key_group_end))
    ]
