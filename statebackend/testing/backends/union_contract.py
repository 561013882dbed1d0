"""The contract of state with union values that is restored with other members of the union.

Members are identified by type. So a union may list them in another order and get more members, and state of one type
may become a union. Every value is read by the member that wrote it, also if one file contains values from before and
after the change.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from snapshots.compatibility import CompatibilityKind
from statebackend.state.errors import StateMigrationException
from statebackend.testing.backends.harness import BackendHarness, ContractBase, content
from statebackend.testing.backends.learning_contract import KINDS
from typeserializers.containers.unions import UnionSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.record_serializer import AttrsSerializer
from typeserializers.scalars.byte_arrays import BytesSerializer
from typeserializers.scalars.fixed_width import BooleanSerializer, LongSerializer
from typeserializers.scalars.strings import StringSerializer

BOOL, BYTES, LONG, STRING = BooleanSerializer(), BytesSerializer(), LongSerializer(), StringSerializer()


@attrs.frozen
class Reading:
    """A record with a field of a union type. The record type is the same in every version."""

    sensor: str
    value: Any


def _union(*members: TypeSerializer[Any]) -> UnionSerializer:
    return UnionSerializer(members)


def _at_the_top(serializer: TypeSerializer[Any]) -> tuple[TypeSerializer[Any], Any]:
    return serializer, lambda value: value


def _in_a_record(serializer: TypeSerializer[Any]) -> tuple[TypeSerializer[Any], Any]:
    return AttrsSerializer(Reading, field_serializers={"value": serializer}), lambda value: Reading("s", value)


# Old and new serializer, the compatibility result, and values from before and after the change.
CHANGES: dict[str, tuple[TypeSerializer[Any], TypeSerializer[Any], CompatibilityKind, list[Any], list[Any]]] = {
    "the same": (_union(STRING, BYTES), _union(STRING, BYTES), CompatibilityKind.AS_IS, ["é", b"\xff"], [b"", ""]),
    "members in another order": (
        _union(STRING, BYTES, BOOL, LONG),
        _union(LONG, BOOL, BYTES, STRING),
        CompatibilityKind.WITH_RECONFIGURED_SERIALIZER,
        ["text", b"text", True, 1],
        [b"more", "more", 0, False],
    ),
    "members added among them": (
        _union(LONG, STRING),
        _union(BOOL, STRING, BYTES, LONG),
        CompatibilityKind.AFTER_MIGRATION,
        [1, "1"],
        [True, b"1", "one", 2],
    ),
    "one type becomes one of several": (
        LONG,
        _union(STRING, BOOL, LONG),
        CompatibilityKind.AFTER_MIGRATION,
        [1, 0, -(2**63)],
        [True, "1", 1],
    ),
}


class UnionContract(ContractBase):
    """State of a union type, restored with other members."""

    @pytest.mark.parametrize("canonical", [False, True], ids=["snapshot", "savepoint"])
    @pytest.mark.parametrize("place", [_at_the_top, _in_a_record], ids=["at the top", "in a record"])
    @pytest.mark.parametrize("change", CHANGES)
    def test_values_keep_their_types_when_the_members_of_a_union_change(
        self, harness: BackendHarness, change: str, place: Any, canonical: bool
    ) -> None:
        old, new, kind, before, after = CHANGES[change]
        (old_serializer, wrapped), (new_serializer, _) = place(old), place(new)
        expected: dict[str, dict[int, Any]] = {name: {} for name in KINDS}
        backend = harness.open(self.create_state_backend())
        for name, (describe, write, held) in _kinds().items():
            state = backend.get_state(describe(name, old_serializer))
            for key, value in enumerate(before):
                harness.at(backend, key)
                write(state, wrapped(value))
                expected[name][key] = held(wrapped(value))
        handle = harness.export(backend) if canonical else harness.snapshot(backend).handle
        added = list(enumerate(after, len(before)))
        # The second restore reads files that have values from before and after the change.
        for part in (added[:1], added[1:]):
            restored = self.reopen(harness, handle)
            for name, (describe, write, held) in _kinds().items():
                descriptor = describe(name, new_serializer)
                state = restored.get_state(descriptor)
                if part == added[:1]:
                    assert restored.restore_reports[-1].compatibility.kind is kind
                assert _typed(content(harness, restored, descriptor)) == _typed(expected[name])
                for key, value in part:
                    harness.at(restored, key)
                    write(state, wrapped(value))
                    expected[name][key] = held(wrapped(value))
            handle = harness.snapshot(restored).handle
        restored = self.reopen(harness, handle)
        for name, (describe, _, _) in _kinds().items():
            assert _typed(content(harness, restored, describe(name, new_serializer))) == _typed(expected[name])

    @pytest.mark.parametrize("place", [_at_the_top, _in_a_record], ids=["at the top", "in a record"])
    def test_a_union_without_a_member_that_the_state_may_hold_is_rejected_and_changes_nothing(
        self, harness: BackendHarness, place: Any
    ) -> None:
        (old_serializer, wrapped) = place(_union(LONG, STRING))
        backend = harness.open(self.create_state_backend())
        for name, (describe, write, _) in _kinds().items():
            harness.at(backend, 1)
            write(backend.get_state(describe(name, old_serializer)), wrapped(5))
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        for name, (describe, _, held) in _kinds().items():
            for rejected in (_union(STRING, BYTES), _union(STRING, BOOL), STRING, LONG):
                with pytest.raises(StateMigrationException):
                    restored.get_state(describe(name, place(rejected)[0]))
            descriptor = describe(name, old_serializer)
            assert _typed(content(harness, restored, descriptor)) == _typed({1: held(wrapped(5))})


def _kinds() -> dict[str, tuple[Any, Any, Any]]:
    """Return every kind of state, with distinct names for use in one backend."""
    return {
        name: (
            lambda state_name, serializer, describe=describe: attrs.evolve(describe(serializer), name=state_name),
            write,
            held,
        )
        for name, (describe, write, held) in KINDS.items()
    }


def _typed(values: Any) -> str:
    """Return a text that is equal only for equal values of equal types: True is not 1, and "a" is not b"a"."""
    return repr(values)
