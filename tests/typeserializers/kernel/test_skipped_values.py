"""Skipping of values is a hook of every serializer, also of custom ones."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

import typeserializers as ts
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot, snapshot_from_bytes, snapshot_to_bytes
from snapshots.errors import EndOfDataError
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from statebackend.testing.upgrades import migration_between
from typeserializers.kernel.stepping_over import SteppedOverSerializer, stepping_over


class GoneSerializer(ts.TypeSerializer[Any]):
    """A custom serializer that cannot create its values any more, but can skip them."""

    def serialize(self, value: Any, out: DataOutputView) -> None:
        out.write_sized_bytes(value)

    def deserialize(self, source: DataInputView) -> Any:
        raise AssertionError("the library of these values is gone")

    def create_instance(self) -> Any:
        return b""

    def snapshot_configuration(self) -> GoneSerializerSnapshot:
        return GoneSerializerSnapshot()

    def stepping_over(self, part: Any) -> ts.TypeSerializer[Any]:
        return SteppedOverSerializer(self, DataInputView.read_sized_bytes)


class RewrittenSerializer(GoneSerializer):
    """Has another format than the class with the skip hook."""

    def serialize(self, value: Any, out: DataOutputView) -> None:
        out.write_unsigned_byte(value)

    def deserialize(self, source: DataInputView) -> Any:
        return source.read_unsigned_byte()


@register_snapshot("tests.stepping_over.GoneSerializerSnapshot")
class GoneSerializerSnapshot(SimpleTypeSerializerSnapshot[Any]):
    serializer_class = GoneSerializer


@attrs.frozen
class Old:
    before: str
    dropped: Any
    after: str


@attrs.frozen
class New:
    before: str
    after: str


@pytest.mark.parametrize(
    ("dropped", "value"),
    [
        (GoneSerializer(), b"xyz"),
        (ts.ListSerializer(GoneSerializer()), [b"", b"x"]),
        (ts.MapSerializer(ts.StringSerializer(), ts.NullableSerializer(GoneSerializer())), {"a": None, "b": b"y"}),
    ],
)
def test_a_removed_field_is_skipped_by_its_serializer(dropped: Any, value: Any) -> None:
    old = ts.AttrsSerializer(Old, name="stepping.Record", field_serializers={"dropped": dropped})
    new = ts.AttrsSerializer(New, name="stepping.Record")
    data = old.to_bytes(Old("a", value, "z"))
    migration = migration_between(snapshot_from_bytes(snapshot_to_bytes(old.snapshot_configuration())), new)
    assert migration.to_value(data) == New("a", "z")
    assert new.from_bytes(migration.to_bytes(data)) == New("a", "z")


def test_truncated_bytes_are_rejected() -> None:
    data = GoneSerializer().to_bytes(b"xyz")
    for end in range(len(data)):
        with pytest.raises(EndOfDataError):
            stepping_over(GoneSerializer()).from_bytes(data[:end])


def test_a_subclass_with_another_format_does_not_inherit_the_skip_hook() -> None:
    serializer = RewrittenSerializer()
    assert stepping_over(serializer) is serializer


def test_a_readable_value_is_read_by_its_own_serializer() -> None:
    for serializer in (ts.LongSerializer(), ts.ListSerializer(ts.StringSerializer()), ts.AttrsSerializer(New)):
        assert stepping_over(serializer) is serializer
