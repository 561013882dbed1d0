"""Columns that are decoded from stored bytes at once have the values that serializers read."""

from __future__ import annotations

import struct
from typing import Any

import attrs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.savepoint.column_codecs import read_column
from statebackend.savepoint.tables import ColumnForms
from typeserializers import AttrsSerializer, ListSerializer
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.byte_arrays import BytesSerializer
from typeserializers.scalars.fixed_width import (
    BooleanSerializer,
    ByteSerializer,
    DoubleSerializer,
    FloatSerializer,
    IntSerializer,
    LongSerializer,
    ShortSerializer,
)
from typeserializers.scalars.strings import StringSerializer

pytestmark = pytest.mark.slow

pytest.importorskip("numpy")


@attrs.frozen
class Inner:
    number: int
    share: float


@attrs.frozen
class Outer:
    is_new: bool
    inner: Inner


@attrs.frozen
class Named:
    name: str


INNER = st.builds(Inner, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
CASES: list[tuple[TypeSerializer[Any], st.SearchStrategy[Any]]] = [
    (BooleanSerializer(), st.booleans()),
    (ByteSerializer(), st.integers(-128, 127)),
    (ShortSerializer(), st.integers(-(2**15), 2**15 - 1)),
    (IntSerializer(), st.integers(-(2**31), 2**31 - 1)),
    (LongSerializer(), st.integers(-(2**63), 2**63 - 1)),
    (FloatSerializer(), st.floats(allow_nan=False, width=32)),
    (DoubleSerializer(), st.floats(allow_nan=False)),
    (StringSerializer(), st.text(st.characters(max_codepoint=127), max_size=126)),
    (BytesSerializer(), st.binary(max_size=9)),
    (AttrsSerializer(Inner), INNER),
    (AttrsSerializer(Outer), st.builds(Outer, st.booleans(), INNER)),
]


def plain(value: Any) -> Any:
    return attrs.asdict(value) if attrs.has(type(value)) else value


@pytest.mark.parametrize(("serializer", "values"), CASES, ids=[case[0].type_name for case in CASES])
@given(data=st.data())
def test_values_are_those_of_the_serializer(
    serializer: TypeSerializer[Any], values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    drawn = data.draw(st.lists(values, max_size=8))
    start = data.draw(st.integers(0, len(drawn)))
    stored = pa.array([serializer.to_bytes(value) for value in drawn], pa.binary())
    column = read_column(serializer, stored.slice(start))
    assert column is not None
    assert column.to_pylist() == [plain(value) for value in drawn[start:]]


@given(st.lists(st.text(max_size=140) | st.none(), max_size=6))
def test_texts_without_null_are_decoded_at_once(texts: list[str | None]) -> None:
    serializer = StringSerializer()
    column = read_column(serializer, pa.array([serializer.to_bytes(text) for text in texts], pa.binary()))
    assert (column is not None) == (None not in texts)
    assert column is None or column.to_pylist() == texts


@pytest.mark.parametrize("serializer", [case[0] for case in CASES], ids=[case[0].type_name for case in CASES])
@given(data=st.lists(st.binary(max_size=20), min_size=1, max_size=4))
def test_any_bytes_are_decoded_as_by_the_serializer_or_left_to_it(
    serializer: TypeSerializer[Any], data: list[bytes]
) -> None:
    column = read_column(serializer, pa.array(data, pa.binary()))
    if column is not None:
        read = [plain(serializer.from_bytes(one)) for one in data]
        assert str(column.to_pylist()) == str(read)


def test_other_types_are_decoded_one_by_one() -> None:
    optional: Any = NullableSerializer(StringSerializer())
    assert read_column(ListSerializer(optional), pa.array([b"\0\0\0\0"], pa.binary())) is None
    assert read_column(BooleanSerializer(), pa.array([b"\x02"], pa.binary())) is None
    assert read_column(LongSerializer(), pa.array([struct.pack(">i", 7)], pa.binary())) is None


@attrs.frozen
class Mixed:
    """Fields of all kinds that can be decoded at once, at varying offsets."""

    name: str
    number: int
    note: str | None
    data: bytes
    named: Named
    share: float | None
    inner: Inner


SHORT = st.text(st.characters(min_codepoint=0, max_codepoint=0x7F), max_size=5)
MIXED = st.builds(
    Mixed,
    SHORT,
    st.integers(-(2**63), 2**63 - 1),
    st.none() | SHORT,
    st.binary(max_size=4),
    st.builds(Named, SHORT),
    st.none() | st.floats(allow_nan=False),
    INNER,
)


@given(st.lists(MIXED, min_size=3, max_size=6), st.integers(0, 2))
def test_records_with_fields_of_all_lengths_are_decoded_at_once(records: list[Mixed], skipped: int) -> None:
    serializer = AttrsSerializer(Mixed)
    data = pa.array([serializer.to_bytes(one) for one in records], pa.binary()).slice(skipped)
    column = read_column(serializer, data)
    assert column is not None
    column.validate(full=True)
    assert column.to_pylist() == [attrs.asdict(one) for one in records[skipped:]]
    assert column.type == ColumnForms().of(serializer).data_type


@given(st.lists(MIXED, min_size=1, max_size=4), st.data())
def test_truncated_or_changed_records_are_decoded_as_by_the_serializer_or_not_at_once(
    records: list[Mixed], drawn: st.DataObject
) -> None:
    serializer = AttrsSerializer(Mixed)
    stored = [serializer.to_bytes(one) for one in records]
    row = drawn.draw(st.integers(0, len(stored) - 1))
    position = drawn.draw(st.integers(0, len(stored[row]) - 1))
    damage = drawn.draw(st.sampled_from([b"", b"\0", b"\x7f", b"\xff", b"\1"]))
    stored[row] = stored[row][:position] + damage + (stored[row][position + 1 :] if damage else b"")
    column = read_column(serializer, pa.array(stored, pa.binary()))
    if column is not None:
        column.validate(full=True)
        expected = [attrs.asdict(serializer.from_bytes(one)) for one in stored]
        assert repr(column.to_pylist()) == repr(expected)


@pytest.mark.parametrize(
    "record",
    [
        Named("ab"),
        Mixed("ab", 7, "n", b"xy", Named("c"), 0.5, Inner(1, 2.0)),
        Mixed("", 0, None, b"", Named(""), None, Inner(1, 2.0)),
    ],
    ids=["one text", "all there", "nothing there"],
)
@pytest.mark.parametrize("row", [0, 1])
def test_a_record_with_any_damaged_byte_is_decoded_as_by_the_serializer_or_not_at_once(record: Any, row: int) -> None:
    serializer = AttrsSerializer(type(record))
    whole = serializer.to_bytes(record)
    pieces = [(whole[:position], whole[position:]) for position in range(len(whole) + 1)]
    damaged = [before for before, _ in pieces[:-1]]
    damaged += [before + bytes([byte]) + behind for before, behind in pieces for byte in (0, 1, 2, 0x7F, 0xFF)]
    damaged += [
        before + bytes([behind[0] ^ flipped]) + behind[1:]
        for before, behind in pieces[:-1]
        for flipped in (1, 2, 3, 0x80)
    ]
    for one in damaged:
        stored = [whole, whole]
        stored[row] = one
        column = read_column(serializer, pa.array(stored, pa.binary()))
        if column is not None:
            assert repr(column.to_pylist()[row]) == repr(attrs.asdict(serializer.from_bytes(one))), one


def test_non_ascii_and_long_texts_of_a_record_are_decoded() -> None:
    serializer = AttrsSerializer(Named)
    for text in ("é", "x" * 200):
        data = pa.array([serializer.to_bytes(Named(one)) for one in ("a", text)], pa.binary())
        column = read_column(serializer, data)
        assert column is not None
        assert column.to_pylist() == [{"name": "a"}, {"name": text}]
