"""The copies of broadcast state that subtasks acknowledge at the end of an epoch must be equal."""

from __future__ import annotations

import pytest

from snapshots import snapshot_to_bytes
from statebackend.checkpoint.coordinator.pending_checkpoint import CompletedCheckpoint
from statebackend.checkpoint.state_handles import FileHandle, OperatorState, SubtaskState
from statebackend.state.operator_state_descriptors import OperatorStateMode
from statebackend.state.operator_state_handles import (
    FileSlice,
    OperatorStateHandle,
    OperatorStateMeta,
    StatePart,
    encode_operator_state,
)
from statebackend.streaming.errors import EpochError
from statebackend.streaming.operators.stateful_processor import RESERVED_PREFIX
from statebackend.streaming.runtime.worker_functions import check_broadcast_copies
from typeserializers import LongSerializer, StringSerializer

ENVELOPES = {
    "key": snapshot_to_bytes(StringSerializer().snapshot_configuration()),
    "value": snapshot_to_bytes(LongSerializer().snapshot_configuration()),
}
MORE = {**ENVELOPES, "value": snapshot_to_bytes(StringSerializer().snapshot_configuration())}
FILE = FileHandle("state/file", 10, "xxh3:" + "0" * 32)


def part(digest: str | None, rows: int = 1, start: int = 0, envelopes: dict[str, bytes] | None = None) -> StatePart:
    slices = (FileSlice(FILE, start, start + rows),) if rows else ()
    return StatePart(envelopes or ENVELOPES, slices, None if digest is None else digest.encode().ljust(16, b"."))


def copy(
    *parts: StatePart, name: str = "rules", mode: OperatorStateMode = OperatorStateMode.BROADCAST
) -> OperatorStateMeta:
    return OperatorStateMeta(name, mode, parts)


def check(*subtasks: tuple[OperatorStateMeta, ...] | None) -> None:
    """Complete a checkpoint with these operator states, None for a subtask without state."""
    handles = [None if states is None else encode_operator_state(OperatorStateHandle(states)) for states in subtasks]
    states = tuple(SubtaskState(operator=handle) for handle in handles)
    check_broadcast_copies(CompletedCheckpoint(checkpoint_id=7, operators=(OperatorState("op", "op", 8, states),)))


def test_equal_copies_pass() -> None:
    check((copy(part("a")),), (copy(part("a")),), (copy(part("a")),))
    check((copy(part("a")), copy(part("b"), name="other")), (copy(part("a")), copy(part("b"), name="other")))


def test_different_copies_are_reported_with_the_state_and_the_subtasks() -> None:
    reported = "operator 'op', epoch 7: the copies of broadcast state 'rules' in subtasks 0 and 2 differ"
    with pytest.raises(EpochError, match=reported):
        check((copy(part("a")),), (copy(part("a")),), (copy(part("b")),))
    # All copies are compared with the first one. Subtasks without a copy are skipped.
    with pytest.raises(EpochError, match="'rules' in subtasks 1 and 2 differ"):
        check(None, (copy(part("a")),), (copy(part("b")),))
    with pytest.raises(EpochError, match="'other' in subtasks 0 and 1 differ"):
        check((copy(part("a")), copy(part("b"), name="other")), (copy(part("a")), copy(part("c"), name="other")))


def test_an_empty_copy_counts_as_a_copy() -> None:
    check((copy(part(None, rows=0)),), (copy(part(None, rows=0)),))
    check((copy(part("a", rows=0)),), (copy(part("b", rows=0)),))
    with pytest.raises(EpochError, match="'rules' in subtasks 0 and 1 differ"):
        check((copy(part(None, rows=0)),), (copy(part("a")),))


def test_unknown_copies_are_not_compared() -> None:
    check((copy(part(None)),), (copy(part("a")),), (copy(part("a")),))
    # After a schema change, a copy may consist of two parts.
    check((copy(part("a"), part("b", start=1, envelopes=MORE)),), (copy(part("c")),))
    for mode in (OperatorStateMode.SPLIT, OperatorStateMode.UNION):
        elements = {"element": ENVELOPES["value"]}
        check(*((copy(part(digest, envelopes=elements), mode=mode),) for digest in ("a", "b")))
    check(*((copy(part(digest), name=f"{RESERVED_PREFIX}started"),) for digest in ("a", "b")))
