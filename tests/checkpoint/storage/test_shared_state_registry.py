from __future__ import annotations

import pytest
from effort import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from statebackend.checkpoint import CheckpointNotFoundError, InvariantViolationError, UnsafePathError
from statebackend.checkpoint.store.completed_checkpoint_store import SharedStateRegistry

PATHS = st.sets(st.sampled_from([f"shared/{name}" for name in "abcdefg"]), max_size=5)


class RegistryAgainstModel(RuleBasedStateMachine):
    """Compares the registry with a model that recomputes the owners from sets."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = SharedStateRegistry()
        self.model: dict[int, set[str]] = {}
        self.protected: set[str] = set()
        self.next_id = 0

    @rule(paths=PATHS)
    def register(self, paths: set[str]) -> None:
        self.registry.register(self.next_id, paths)
        self.model[self.next_id] = paths
        self.next_id += 1

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def unregister(self, data: st.DataObject) -> None:
        checkpoint_id = data.draw(st.sampled_from(sorted(self.model)))
        dropped = self.model.pop(checkpoint_id)
        still_needed = set().union(self.protected, *self.model.values())
        assert self.registry.unregister(checkpoint_id) == dropped - still_needed

    @rule(paths=PATHS)
    def protect(self, paths: set[str]) -> None:
        self.registry.protect(paths)
        self.protected |= paths

    @rule(checkpoint_id=st.integers(-1, 20), paths=PATHS)
    def reject(self, checkpoint_id: int, paths: set[str]) -> None:
        if checkpoint_id in self.model:
            with pytest.raises(InvariantViolationError):
                self.registry.register(checkpoint_id, paths)
        else:
            with pytest.raises(CheckpointNotFoundError):
                self.registry.unregister(checkpoint_id)
            with pytest.raises(UnsafePathError):
                self.registry.register(checkpoint_id, [*paths, "../x"])

    @invariant()
    def agrees(self) -> None:
        referenced = set().union(self.protected, *self.model.values())
        assert self.registry.referenced() == referenced
        assert self.registry.checkpoints() == self.model.keys()
        assert self.registry.unreferenced([*sorted(referenced), "nobody's"]) == ["nobody's"]


TestRegistryAgainstModel = RegistryAgainstModel.TestCase
TestRegistryAgainstModel.settings = settings(max_examples=examples(50), stateful_step_count=30)


def test_a_file_is_freed_by_its_last_owner() -> None:
    registry = SharedStateRegistry()
    registry.register(1, ["a", "b"])
    registry.register(2, ["b", "c"])
    assert registry.unregister(1) == {"a"}
    assert registry.unregister(2) == {"b", "c"}


def test_a_file_of_an_unclaimed_savepoint_is_never_freed() -> None:
    registry = SharedStateRegistry()
    registry.protect(["a"])
    registry.register(1, ["a", "b"])
    assert registry.unregister(1) == {"b"}
    assert registry.unreferenced(["a", "b"]) == ["b"]
