"""The contract of entries that cannot be read, although the serializer took them over as they are.

A serializer of a user's own may say so of bytes that it does not read. Each kind of state then raises
`StateRestoreError` with the name of the state, at the latest when the entry is asked for; it never gives another value.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import pytest

from snapshots.compatibility import TypeSerializerSchemaCompatibility
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import MalformedDataError
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot, TypeSerializerSnapshot
from statebackend import ListStateDescriptor, MapStateDescriptor, StateDescriptor, ValueStateDescriptor
from statebackend.api.errors import StateRestoreError
from statebackend.keyed.keyed_state_backend import KeyedStateBackend
from testkit.backends.contract_base import ContractBase
from testkit.backends.harness import BackendHarness
from typeserializers.kernel.type_serializer import TypeSerializer

Box = list[int]


class BoxSerializer(TypeSerializer[Box]):
    """A list of one number, behind which is a byte that says nothing.

    ``largest`` is the largest number that is read; ``is_short`` leaves the last byte unread.
    """

    def __init__(self, largest: int | None = None, *, is_short: bool = False) -> None:
        self.largest = largest
        self.is_short = is_short

    def configuration(self) -> Hashable:
        return self.largest, self.is_short

    @property
    def is_immutable_type(self) -> bool:
        return False

    def create_instance(self) -> Box:
        return [0]

    def copy(self, value: Box) -> Box:
        return [*value]

    def serialize(self, value: Box, out: DataOutputView) -> None:
        out.write_int(value[0])
        out.write_unsigned_byte(0)

    def deserialize(self, source: DataInputView) -> Box:
        number = source.read_int()
        if self.largest is not None and number > self.largest:
            raise MalformedDataError(f"{number} does not fit the box")
        if not self.is_short:
            source.read_unsigned_byte()
        return [number]

    def snapshot_configuration(self) -> TypeSerializerSnapshot[Box]:
        return BoxSerializerSnapshot()


@register_snapshot("statebackend.contract.BoxSerializerSnapshot")
class BoxSerializerSnapshot(SimpleTypeSerializerSnapshot[Box]):
    """Says of every box that it is read as it is."""

    def restore_serializer(self) -> BoxSerializer:
        return BoxSerializer()

    def resolve_schema_compatibility(
        self, new_serializer: TypeSerializer[Box]
    ) -> TypeSerializerSchemaCompatibility[Box]:
        return TypeSerializerSchemaCompatibility.compatible_as_is()


Described = Callable[[TypeSerializer[Box]], StateDescriptor]

KINDS: list[tuple[str, Described, Callable[[Any], object], Callable[[Any], object]]] = [
    ("value", lambda box: ValueStateDescriptor("boxes", box), lambda s: s.update([7]), lambda s: s.value()),
    ("list", lambda box: ListStateDescriptor("boxes", box), lambda s: s.add_all([[1], [7]]), lambda s: s.get()),
    ("map", lambda box: MapStateDescriptor("boxes", str, box), lambda s: s.put("b", [7]), lambda s: s.get("b")),
    (
        "entries of a map",
        lambda box: MapStateDescriptor("boxes", str, box),
        lambda s: s.put("b", [7]),
        lambda s: list(s.items()),
    ),
]


class UnreadableEntriesContract(ContractBase):
    """See the module."""

    @pytest.mark.parametrize("hasty", [BoxSerializer(6), BoxSerializer(is_short=True)], ids=["refuses", "reads less"])
    @pytest.mark.parametrize(
        ("described", "write", "read"), [kind[1:] for kind in KINDS], ids=[kind[0] for kind in KINDS]
    )
    def test_an_entry_that_cannot_be_read_is_an_error_that_names_the_state(
        self,
        harness: BackendHarness,
        backend: KeyedStateBackend,
        described: Described,
        write: Callable[[Any], object],
        read: Callable[[Any], object],
        hasty: BoxSerializer,
    ) -> None:
        write(backend.get_state(described(BoxSerializer())))
        handle = harness.snapshot(backend).handle
        with pytest.raises(StateRestoreError, match=r"state 'boxes'.* cannot be read by"):
            read(self.reopen(harness, handle).get_state(described(hasty)))
        # Nothing was changed by that.
        assert read(self.reopen(harness, handle).get_state(described(BoxSerializer(7))))
