"""The contract of restoring at another parallelism."""

from __future__ import annotations

from typing import Any

import pytest

from checkpointing.handles.state_handles import KeyedStateHandle
from statebackend import ValueStateDescriptor
from statebackend.api.key_groups import KeyGroupRange, key_group_range_of_subtask, subtask_of_key_group
from statebackend.keyed.state_meta import decode_meta
from testkit.backends.contract_base import VALUE, ContractBase, contents, fill, filled
from testkit.backends.harness import BackendHarness


class RescaleContract(ContractBase):
    """See the module."""

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

    def test_the_first_snapshot_after_rescaling_holds_this_subtasks_keys_only(self, harness: BackendHarness) -> None:
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
    def test_every_key_group_may_have_a_state_of_its_own_name(
        self, harness: BackendHarness, before: int, after: int
    ) -> None:
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
