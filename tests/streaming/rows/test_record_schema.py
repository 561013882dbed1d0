"""Record classes as schemas: the column type of each Python type, and rows converted back."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import pickle
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypeVar

import attrs
import msgspec
import pydantic
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from snapshots import SerializationError
from statebackend import ColumnType, JobDefinitionError, KeyedProcessFunction, ValueStateDescriptor
from statebackend.streaming.rows.declared_schema import DeclaredSchema, parsed_schema
from statebackend.streaming.rows.record_schema import (
    annotated_output,
    columns_of_class,
    output_schema,
    record_type,
    returned_type,
)
from statebackend.streaming.rows.row_reader import RowReader, UnreadableRowError
from statebackend.streaming.rows.row_writer import RowMismatchError, RowWriter


class Kind(enum.Enum):
    CARD = "card"
    CASH = "cash"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


UserId = NewType("UserId", int)


@dataclasses.dataclass
class Line:
    number: int
    price: Annotated[Decimal, ColumnType("decimal(10,2)")]


@attrs.frozen
class Order:
    id: UserId
    name: str | None
    paid: bool
    ratio: float
    raw: bytes
    day: datetime.date
    at: datetime.datetime
    clock: datetime.time
    took: datetime.timedelta
    total: Decimal
    kind: Kind
    level: Optional[Level]  # noqa: UP045
    mixed: Mixed
    size: Literal["s", "m"]
    small: Annotated[int, ColumnType("smallint")]
    local: Annotated[datetime.datetime, ColumnType("timestamp_ntz")]
    lines: list[Line]
    first: Line | None
    tags: tuple[str, ...]
    counts: dict[str, int | None]


TYPES = {
    "id": ("bigint", False),
    "name": ("string", True),
    "paid": ("boolean", False),
    "ratio": ("double", False),
    "raw": ("binary", False),
    "day": ("date", False),
    "at": ("timestamp", False),
    "clock": ("time(6)", False),
    "took": ("interval day to second", False),
    "total": ("decimal(38,18)", False),
    "kind": ("string", False),
    "level": ("bigint", True),
    "mixed": ("string", False),
    "size": ("string", False),
    "small": ("smallint", False),
    "local": ("timestamp_ntz", False),
    "lines": ("array<struct<number:bigint,price:decimal(10,2)>>", False),
    "first": ("struct<number:bigint,price:decimal(10,2)>", True),
    "tags": ("array<string>", False),
    "counts": ("map<string,bigint>", False),
}

UTC = datetime.timezone.utc
ORDER = Order(
    id=UserId(1),
    name=None,
    paid=True,
    ratio=0.5,
    raw=b"\0",
    day=datetime.date(2024, 2, 29),
    at=datetime.datetime(2024, 1, 1, 12, tzinfo=UTC),
    clock=datetime.time(1, 2, 3, 4),
    took=datetime.timedelta(days=-1, microseconds=7),
    total=Decimal("1.250000000000000001"),
    kind=Kind.CASH,
    level=Level.HIGH,
    mixed=Mixed.TWO,
    size="m",
    small=7,
    local=datetime.datetime(2024, 1, 1, 12),
    lines=[Line(1, Decimal("1.50"))],
    first=Line(2, Decimal("0.01")),
    tags=("a", "b"),
    counts={"a": None, "b": 2},
)


def written(record: Any, schema: DeclaredSchema) -> Any:
    return RowWriter(schema.arrow, "here").batch([record])


def read(batch: Any, record_class: type) -> Any:
    [record] = RowReader(batch.schema, "here", kind=record_type(record_class, "here")).rows(batch)
    return record


def test_each_python_type_has_a_column_type() -> None:
    schema = record_type(Order, "here").schema
    assert {column.name: (column.type_name, column.nullable) for column in schema.columns} == TYPES


def test_a_record_of_every_type_round_trips() -> None:
    assert read(written(ORDER, record_type(Order, "here").schema), Order) == ORDER


def test_the_converter_is_pickled_without_the_names_of_its_type_hints() -> None:
    from pyspark import cloudpickle

    kind = pickle.loads(cloudpickle.dumps(record_type(Order, "here")))
    batch = written(ORDER, kind.schema)
    assert RowReader(batch.schema, "here", kind=kind).rows(batch) == [ORDER]


class PairTuple(NamedTuple):
    a: int
    b: str | None = None


@attrs.define(kw_only=True)
class PairAttrs:
    a: int
    b: str | None = None


class PairModel(pydantic.BaseModel):
    a: int
    b: str | None = None


class PairStruct(msgspec.Struct):
    a: int
    b: str | None = None


@pytest.mark.parametrize("record_class", [PairTuple, PairAttrs, PairModel, PairStruct])
@given(a=st.integers(-(1 << 63), (1 << 63) - 1), b=st.none() | st.text("abc"))
def test_every_family_of_records_round_trips(record_class: Any, a: int, b: str | None) -> None:
    record = record_class(a=a, b=b)
    assert read(written(record, record_type(record_class, "here").schema), record_class) == record


@attrs.frozen
class Doubled:
    """A frozen class whose constructor modifies a value."""

    a: int = attrs.field(converter=lambda value: value * 2)


@attrs.frozen
class Checked:
    a: int

    def __attrs_post_init__(self) -> None:
        if self.a < 0:
            raise ValueError("a is negative")


@attrs.frozen
class Below(Checked):
    b: int = 0


@pytest.mark.parametrize(
    ("record_class", "values", "record"),
    [
        (PairAttrs, (1, "x"), PairAttrs(a=1, b="x")),
        (Doubled, (1,), Doubled(1)),
        (Checked, (1,), Checked(1)),
        (Below, (1, 2), Below(1, 2)),
    ],
)
def test_an_attrs_class_is_created_as_its_constructor_does(record_class: Any, values: Any, record: Any) -> None:
    kind = record_type(record_class, "here")
    [made] = kind.make_all([[value] for value in values])
    assert made == record
    assert type(made) is record_class


def test_a_frozen_record_stays_frozen() -> None:
    [made] = record_type(Frozen, "here").make_all([[1], ["x"]])
    assert made == Frozen(1, "x")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        made.a = 2


def test_a_constructor_check_runs() -> None:
    with pytest.raises(ValueError, match="a is negative"):
        record_type(Checked, "here").make_all([[-1]])


@attrs.frozen
class Frozen:
    a: int
    b: str


def holder(hint: Any) -> type:
    return attrs.make_class("Holder", {"field": attrs.field(type=hint)})


class Permission(enum.Flag):
    READ = 1


@attrs.define
class Node:
    value: int
    next: Node | None


@attrs.define
class Upper:
    id: int
    ID: int


T = TypeVar("T")


@attrs.frozen
class Box(Generic[T]):
    value: T


K = TypeVar("K")


@attrs.frozen
class Pair(Generic[T, K]):
    value: T
    others: list[K]
    boxed: dict[str, T | None]


@attrs.frozen
class Swapped(Pair[K, int], Generic[K]):
    own: K


@attrs.frozen
class Bound(Swapped[str]):
    name: str


@dataclasses.dataclass
class DataBox(Generic[T]):
    value: Annotated[T, "a note"]


@dataclasses.dataclass
class DecimalBox(DataBox[Decimal]):
    pass


class UndecoratedDataclass(DataBox[Decimal]):
    more: int


class UndecoratedAttrs(Box[str]):
    more: int


class LongerTuple(NamedTuple("Tuple", [("value", int)])):
    more: int


@pytest.mark.parametrize(
    ("record_class", "columns"),
    [
        (
            Bound,
            {
                "value": "string",
                "others": "array<bigint>",
                "boxed": "map<string,string>",
                "own": "string",
                "name": "string",
            },
        ),
        (DecimalBox, {"value": "decimal(38,18)"}),
    ],
)
def test_a_field_of_a_generic_base_class_has_the_type_that_the_class_binds(
    record_class: type, columns: dict[str, str]
) -> None:
    assert output_schema(record_class, "here", "").type_names == columns


@pytest.mark.parametrize("record_class", [UndecoratedDataclass, UndecoratedAttrs, LongerTuple])
@pytest.mark.parametrize(
    "read", [lambda given: output_schema(given, "here", ""), lambda given: record_type(given, "here")]
)
def test_a_class_that_only_inherits_from_a_record_class_is_rejected(record_class: type, read: Any) -> None:
    with pytest.raises(JobDefinitionError, match=r"here: .* is not a record itself, so its own fields would be lost"):
        read(record_class)


def test_a_record_of_a_generic_base_class_can_be_stored() -> None:
    descriptor: ValueStateDescriptor[Bound] = ValueStateDescriptor("bound", Bound)
    record = Bound("a", [1, 2], {"x": None, "y": "z"}, "own", "name")
    serializer = descriptor.serializers["value"]
    assert serializer.from_bytes(serializer.to_bytes(record)) == record
    with pytest.raises(SerializationError, match=r"\.value"):
        serializer.to_bytes(attrs.evolve(record, value=1))


@pytest.mark.parametrize(
    ("hint", "reason"),
    [
        (set[int], r"Holder\.field: set\[int\] has no column type; use list"),
        (Sequence[int], r"Holder\.field: .*Sequence\[int\] has no column type; use list\[X\]"),
        (Mapping[str, int], r"Holder\.field: .*Mapping\[str, int\] has no column type; use dict\[K, V\]"),
        (Box[int], r"Holder\.field: Box\[int\] has no column type; a generic class has no columns, so use a subclass"),
        (Box, r"Holder\.field\.value: T has no column type; a generic class has no columns"),
        (Any, r"Holder\.field: .*Any has no column type"),
        (list, r"Holder\.field: list has no column type; name the type of what it holds"),
        (list[dict[str, int | str]], r"Holder\.field\[\]\{value\}: int \| str has no column type; a column has one"),
        (tuple[int, str], r"Holder\.field: tuple\[int, str\] has no column type; use a NamedTuple"),
        (dict[str | None, int], r"Holder\.field\{key\}: a key of a map cannot be None"),
        (Literal["a", 1], r"Holder\.field: .* has values of several types"),
        (Permission, r"Holder\.field: Permission is a Flag"),
        (
            Annotated[int, ColumnType("string")],
            r"Holder\.field: ColumnType\(ddl='string'\) is not a column for int",
        ),
        (Annotated[Decimal, ColumnType("decimal(50,2)")], r"Holder\.field: .*decimal\(50,2\) is not a type"),
        (Node, r"Holder\.field\.next: Node contains itself"),
        (Upper, r"Holder\.field: .*two columns are called 'id'"),
    ],
)
def test_a_type_without_a_column_is_rejected_with_its_path(hint: Any, reason: str) -> None:
    with pytest.raises(JobDefinitionError, match=f"^operator 'x': {reason}"):
        output_schema(holder(hint), "operator 'x'", "")


@pytest.mark.parametrize("given_schema", [int, Kind, object()])
def test_other_schemas_are_rejected(given_schema: object) -> None:
    with pytest.raises(JobDefinitionError, match=r"^here: schema must be DDL, a record class or a StructType, not"):
        output_schema(given_schema, "here", "")


def test_a_decimal_that_would_lose_digits_is_rejected() -> None:
    schema = record_type(Line, "here").schema
    with pytest.raises(RowMismatchError, match=r"column 'price' .* cannot hold Decimal\('1\.005'\)"):
        written(Line(1, Decimal("1.005")), schema)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "gold"}, r"a row cannot be read as Order: ValueError: 'gold' is not a constant of Kind"),
        ({"size": "xl"}, r"a row cannot be read as Order: ValueError: 'xl' is not a value of typing\.Literal"),
        ({"id": None}, r"a row cannot be read as Order: id: it is null, and its type is not optional"),
    ],
)
def test_a_row_of_another_record_is_rejected(change: dict[str, Any], reason: str) -> None:
    schema = record_type(Order, "here").schema
    nullable = evolve(schema, columns=tuple(evolve(column, nullable=True) for column in schema.columns))
    batch = written({**attrs.asdict(ORDER, recurse=False), **change}, nullable)
    with pytest.raises(UnreadableRowError, match=f"here: {reason}"):
        read(batch, Order)


@pytest.mark.parametrize(
    ("hint", "ddl", "value", "path"),
    [
        (list[int], "field array<bigint>", [1, None], r"Holder\.field\[\]"),
        (dict[str, int], "field map<string, bigint>", {"a": None}, r"Holder\.field\{value\}"),
        (PairTuple, "field struct<a: bigint, b: string>", (None, "x"), r"Holder\.field\.a"),
    ],
)
def test_a_null_inside_a_value_is_rejected_with_its_path(hint: Any, ddl: str, value: Any, path: str) -> None:
    batch = written((value,), parsed_schema(ddl, "here"))
    with pytest.raises(UnreadableRowError, match=f"ValueError: {path} is null, and its type is not optional"):
        read(batch, holder(hint))


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("a bigint", r"PairTuple\.b: the stream has no column of that name, only a"),
        ("a string, b string", r"PairTuple\.a is bigint and the column is string"),
        ("a decimal(10,0), b string", r"PairTuple\.a is bigint and the column is decimal\(10,0\)"),
    ],
)
def test_a_stream_without_the_columns_of_a_class_is_rejected(ddl: str, reason: str) -> None:
    with pytest.raises(JobDefinitionError, match=f"^here: {reason}"):
        columns_of_class(record_type(PairTuple, "here"), parsed_schema(ddl, "here"), "here")


def test_narrower_numbers_are_accepted() -> None:
    kind = record_type(holder(float), "here")
    assert columns_of_class(kind, parsed_schema("field float, more int", "here"), "here") == ["field"]
    assert columns_of_class(record_type(PairTuple, "here"), parsed_schema("b string, a int", "here"), "here") == [
        "a",
        "b",
    ]


class Plain(KeyedProcessFunction[str, Any, PairTuple]):
    def process_element(self, value: Any, context: Any) -> None: ...


class Inheriting(Plain):
    """Inherits the annotation."""


class Untyped(KeyedProcessFunction):  # type: ignore[type-arg]
    def process_element(self, value: Any, context: Any) -> None: ...


class OfNoRecord(KeyedProcessFunction[str, Any, tuple[str, int]]):
    def process_element(self, value: Any, context: Any) -> None: ...


class OfAnyInput(KeyedProcessFunction[str, T, PairTuple]):
    def process_element(self, value: T, context: Any) -> None: ...


class OfOrders(OfAnyInput[Order]):
    """Binds the input."""


O = TypeVar("O")  # noqa: E741


class NamedAsTheOutput(KeyedProcessFunction[str, O, PairTuple], Generic[O]):
    def process_element(self, value: O, context: Any) -> None: ...


class OfLines(NamedAsTheOutput[Line]):
    """Binds the input, whose type variable has the name of the output's."""


class OfAny(KeyedProcessFunction[str, T, K]):
    def process_element(self, value: T, context: Any) -> None: ...


class OfBoth(OfAny[Order, PairTuple]):
    """Binds input and output."""


@pytest.mark.parametrize(
    ("function_class", "output"),
    [
        (Plain, PairTuple),
        (Inheriting, PairTuple),
        (Untyped, None),
        (OfNoRecord, None),
        (OfOrders, PairTuple),
        (OfLines, PairTuple),
        (OfAny, None),
        (OfBoth, PairTuple),
    ],
)
def test_the_output_is_inferred_from_the_annotation_of_a_function(function_class: Any, output: Any) -> None:
    assert annotated_output(function_class()) is output


def one(record: Any) -> PairTuple: ...  # type: ignore[empty-body]


def several(record: Any) -> list[PairTuple]: ...  # type: ignore[empty-body]


def some(row: Any) -> list[PairTuple] | None:
    return None


class Callable:
    def __call__(self, row: Any) -> Optional[PairTuple]:  # noqa: UP045
        return None


@pytest.mark.parametrize(
    ("function", "returned"),
    [
        (one, PairTuple),
        (several, PairTuple),
        (some, PairTuple),
        (Callable(), PairTuple),
        (Callable().__call__, PairTuple),
        (functools.partial(functools.partial(one)), PairTuple),
        (PairTuple, PairTuple),
        (lambda row: row, None),
        (len, None),
    ],
)
def test_the_return_annotation_of_a_function_is_read(function: Any, returned: Any) -> None:
    assert returned_type(function) is returned
