"""A POJO's snapshot is read as written, or rejected: each part and its trailing bytes."""

from __future__ import annotations

import pytest

from snapshots import DataInputView, DataOutputView, SnapshotFormatError, UnresolvableSerializerError, snapshot_to_bytes
from snapshots.envelope import MAX_NESTING
from typeserializers import LongSerializer
from typeserializers.containers.maps import OptionalEntry, write_optional_map
from typeserializers.pojos.pojo_format import UnreadableSnapshot, WrittenPart, WrittenPojo, read_pojo, write_pojo

LONG = snapshot_to_bytes(LongSerializer().snapshot_configuration())


def names(*texts: str) -> bytes:
    out = DataOutputView()
    for text in texts:
        out.write_utf(text)
    return out.to_bytes()


UNKNOWN = names("nobody.knows.ThisSnapshot") + b"\0\0\0\x01 and what it holds"


def content(field: OptionalEntry, *subclasses: OptionalEntry) -> bytes:
    out = DataOutputView()
    out.write_utf("a.Place")
    for entries in ([field], list(subclasses), []):
        write_optional_map(out, entries)
    return out.to_bytes()


def read(data: bytes, nesting: int = 0) -> WrittenPojo:
    source = DataInputView(data)
    source.nesting = nesting
    pojo = read_pojo(source)
    assert source.remaining == 0
    return pojo


def written(pojo: WrittenPojo, nesting: int = 0) -> bytes:
    out = DataOutputView()
    out.nesting = nesting
    write_pojo(pojo, out)
    return out.to_bytes()


def test_fields_and_subclasses_round_trip() -> None:
    data = content(OptionalEntry("x", names("a.Point", "x"), LONG), OptionalEntry("a.City", b"", LONG))
    pojo = read(data)
    [field], [subclass] = pojo.fields, pojo.registered
    assert (pojo.name, field.name, field.declaring_class, subclass.name) == ("a.Place", "x", "a.Point", "a.City")
    assert field.snapshot.restore_serializer() == subclass.snapshot.restore_serializer() == LongSerializer()
    assert written(pojo) == data


@pytest.mark.parametrize("value", [UNKNOWN, b"", b"\0", None], ids=["unknown", "empty", "cut off", "absent"])
def test_an_unreadable_part_is_kept_and_rejected_when_it_is_needed(value: bytes | None) -> None:
    data = content(OptionalEntry("x", names("a.Point", "x"), value), OptionalEntry("a.City", b"", value))
    pojo = read(data)
    assert written(pojo) == data
    for part in (*pojo.fields, *pojo.registered):
        assert isinstance(part.snapshot, UnreadableSnapshot)
        with pytest.raises(UnresolvableSerializerError, match="cannot be rebuilt"):
            part.snapshot.restore_serializer()
        assert not part.snapshot.resolve_schema_compatibility(LongSerializer()).is_as_is


def test_a_stand_in_is_never_written_or_read_as_its_own_snapshot() -> None:
    with pytest.raises(SnapshotFormatError, match="cannot be rewritten"):
        UnreadableSnapshot().write_snapshot(DataOutputView())
    with pytest.raises(SnapshotFormatError, match="copied, not written"):
        UnreadableSnapshot().read_snapshot(1, DataInputView(b""))


def test_bytes_after_the_snapshot_of_a_part_make_it_unreadable() -> None:
    [part] = read(content(OptionalEntry("x", None, LONG + b"\0"))).fields
    with pytest.raises(UnresolvableSerializerError, match="1 bytes follow it"):
        part.snapshot.restore_serializer()


@pytest.mark.parametrize("key", [names("a.Point", "y"), names("a.Point", "x") + b"\0", names("a.Point", "")])
def test_a_key_of_another_field_is_rejected(key: bytes) -> None:
    with pytest.raises(SnapshotFormatError, match=r"the field x has a key for .* the bytes are damaged"):
        read(content(OptionalEntry("x", key, LONG)))


@pytest.mark.parametrize("size", range(len(names("a.Point", "x"))))
def test_a_truncated_key_is_rejected_with_its_field(size: int) -> None:
    with pytest.raises(SnapshotFormatError, match="the field x has a damaged key"):
        read(content(OptionalEntry("x", names("a.Point", "x")[:size], LONG)))


def test_a_part_is_nested_one_deeper_than_its_composite() -> None:
    data = content(OptionalEntry("x", None, LONG))
    pojo = WrittenPojo("a.Place", (WrittenPart("x", LongSerializer().snapshot_configuration()),))
    assert written(pojo, MAX_NESTING - 1) == data
    assert read(data, MAX_NESTING - 1).fields[0].snapshot.restore_serializer() == LongSerializer()
    with pytest.raises(SnapshotFormatError, match="nested deeper"):
        written(pojo, MAX_NESTING)
    with pytest.raises(UnresolvableSerializerError, match="nested deeper"):
        read(data, MAX_NESTING).fields[0].snapshot.restore_serializer()


def test_duplicate_names_and_invalid_maps_are_rejected() -> None:
    twice = DataOutputView()
    twice.write_utf("a.Place")
    write_optional_map(twice, [OptionalEntry("x", None, LONG)] * 2)
    with pytest.raises(SnapshotFormatError, match="has a name twice"):
        read_pojo(DataInputView(twice.to_bytes()))
    other = names("a.Place") + b"\x01" + content(OptionalEntry("x", None, LONG))[len(names("a.Place")) + 1 :]
    with pytest.raises(SnapshotFormatError, match="no optional map begins at byte"):
        read_pojo(DataInputView(other))
