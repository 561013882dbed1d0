"""Built-in aggregates of keyed and windowed streams: ``keyed.aggregate(n=count(), spent=sum_("amount"))``.

Names of result columns, nulls, result types and overflow are those of Spark SQL in ANSI mode. An aggregate becomes a
*kind* when the type of its column is known: what is stored, the generated statements that fold a value, and the result.
All kinds of one call share one accumulator record per key, or per key and window. It evolves by field name, and the
name of a field contains the kind, so that a sum never continues from a maximum.

One function per call folds a batch, column by column, into lists of accumulators; nothing is looked up per value. Kinds
that are exact and commutative also fold partial results, which Arrow computes per batch and key. All others (sums of
floats, first and last values, sketches) need their records in a fixed order.
"""

from __future__ import annotations

import decimal
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache, partial
from typing import Any, ClassVar, Final, TypeAlias

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from attrs import evolve, field, frozen

from snapshots.errors import format_value
from statebackend.state.states import AggregateFunction
from statebackend.state.ttl_config import StateTtlConfig
from statebackend.streaming.errors import AggregateOverflowError, JobDefinitionError
from statebackend.streaming.rows.declared_schema import Column, DeclaredSchema
from statebackend.streaming.rows.record_serializer import scalar_serializer
from statebackend.streaming.rows.row_reader import column_values, row_class
from statebackend.streaming.sketches import SKETCHES
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.kernel.code_generation import GeneratedFunction, indented
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.column_names import attribute_of_column
from typeserializers.records.record_serializer import AttrsSerializer
from typeserializers.records.record_shape import RecordField, RecordShape
from typeserializers.scalars.big_numbers import BigDecSerializer, BigIntSerializer
from typeserializers.scalars.byte_arrays import BytesSerializer
from typeserializers.scalars.fixed_width import BooleanSerializer, DoubleSerializer, LongSerializer

__all__ = [
    "Aggregate",
    "AggregateDefinition",
    "BoundAggregates",
    "NamedAggregates",
    "approx_count_distinct",
    "approx_percentile",
    "avg",
    "bound_aggregates",
    "checked_aggregates",
    "count",
    "first_value",
    "groups_alike",
    "in_utc",
    "is_grouped_alike",
    "last_value",
    "max_",
    "min_",
    "sum_",
    "top_k",
]


@frozen
class Aggregate:
    """An aggregate of a column, made by a function such as `sum_`."""

    kind: str
    column: str | None
    former_names: tuple[str, ...] = ()
    argument: Any = None

    def __str__(self) -> str:
        return f"{self.kind}({self.column or ''})"


NamedAggregates: TypeAlias = tuple[tuple[str, Aggregate], ...]
"""Aggregates with the names of their result columns."""


def count(column: str | None = None, *, former_names: Iterable[str] = ()) -> Aggregate:
    """Count records or, with a column, its values that are not null. Result: bigint.

    Args:
        column: A column.
        former_names: Names of the result column in former versions of the job. The accumulator continues from them.
    """
    return _aggregate("count", column, former_names)


def sum_(column: str, *, former_names: Iterable[str] = ()) -> Aggregate:
    """Sum the values of a column; null without values. ``former_names`` is as for `count`.

    Result: bigint for integers, double for floats, decimal with ten more digits for decimals. A sum that does not fit
    raises `AggregateOverflowError`.
    """
    return _aggregate("sum", column, former_names)


def min_(column: str, *, former_names: Iterable[str] = ()) -> Aggregate:
    """The least value of a column, in Spark's order: NaN is the greatest number. Null without values."""
    return _aggregate("min", column, former_names)


def max_(column: str, *, former_names: Iterable[str] = ()) -> Aggregate:
    """The greatest value of a column, as `min_`."""
    return _aggregate("max", column, former_names)


def avg(column: str, *, former_names: Iterable[str] = ()) -> Aggregate:
    """The mean of a column; null without values.

    Result: double, or for decimals a decimal with four more digits before and after the point.
    """
    return _aggregate("avg", column, former_names)


def first_value(column: str, *, ignore_nulls: bool = False, former_names: Iterable[str] = ()) -> Aggregate:
    """The value of the first record, by ``order_by`` within an epoch; with ``ignore_nulls`` the first not null."""
    return _aggregate("first", column, former_names, ignore_nulls)


def last_value(column: str, *, ignore_nulls: bool = False, former_names: Iterable[str] = ()) -> Aggregate:
    """The value of the last record, as `first_value`."""
    return _aggregate("last", column, former_names, ignore_nulls)


def approx_count_distinct(column: str, *, former_names: Iterable[str] = ()) -> Aggregate:
    """Estimate how many distinct values a column has, by a HyperLogLog sketch. Result: bigint.

    The relative standard error is 1.6 %. Needs the extra ``sketches``.
    """
    return _aggregate("distinct", column, former_names)


def top_k(column: str, k: int = 5, *, former_names: Iterable[str] = ()) -> Aggregate:
    """The ``k`` most frequent values of a column of texts, integers or dates, by a frequent-items sketch.

    Result: array<struct<item, count: bigint>>, most frequent first. Counts are exact up to 12,000 distinct values, and
    upper bounds beyond. Needs the extra ``sketches``.
    """
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise JobDefinitionError(f"k of top_k() is {format_value(k, 40)}; pass an integer of 1 or more")
    return _aggregate("top", column, former_names, k)


def approx_percentile(column: str, percentage: float, *, former_names: Iterable[str] = ()) -> Aggregate:
    """Estimate a percentile of a column of numbers, by a t-digest. Result: the type of the column.

    ``percentage`` is between 0 and 1. Needs the extra ``sketches``.
    """
    if isinstance(percentage, bool) or not isinstance(percentage, (int, float)) or not 0 <= percentage <= 1:
        raise JobDefinitionError(
            f"percentage of approx_percentile() is {format_value(percentage, 40)}; pass a number between 0 and 1"
        )
    return _aggregate("percentile", column, former_names, float(percentage))


def _aggregate(kind: str, column: Any, former_names: Iterable[str], argument: Any = None) -> Aggregate:
    if isinstance(former_names, str):
        raise JobDefinitionError(f"former_names are a tuple of names; write ({former_names!r},)")
    if column is not None and not isinstance(column, str):
        raise JobDefinitionError(f"an aggregate takes the name of a column, not {format_value(column, 80)}")
    return Aggregate(kind, column, tuple(former_names), argument)


def checked_aggregates(aggregates: Mapping[str, Any]) -> NamedAggregates:
    """Return the aggregates of a call. Raises `JobDefinitionError` if there are none, or for anything else."""
    if not aggregates:
        raise JobDefinitionError("aggregate() needs at least one aggregate, such as n=count()")
    for name, one in aggregates.items():
        if not isinstance(one, Aggregate):
            raise JobDefinitionError(
                f"aggregate({name}=...) is {format_value(one, 80)}; pass count(), sum_('column') or another aggregate"
            )
    return tuple(aggregates.items())


@frozen(eq=False)
class AggregateDefinition:
    """The aggregates of a keyed stream without windows."""

    aggregates: NamedAggregates
    ttl: StateTtlConfig | None = None
    key_names: tuple[str, ...] = ()
    """The names of the key columns in the output."""
    user_functions: ClassVar[tuple[Any, ...]] = ()


_INTEGERS: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_FLOATS: Final = frozenset({"float", "double"})
_LONG_LIMIT: Final = 1 << 63
_MAX_DIGITS: Final = 38
_EXACT: Final = decimal.Context(prec=2 * _MAX_DIGITS + 20, rounding=decimal.ROUND_HALF_UP)
_QUOTIENT: Final = decimal.Context(prec=_MAX_DIGITS + 1, rounding=decimal.ROUND_DOWN)
"""Java's context in Spark's division of decimals."""

Partial = tuple[str, str]
"""A column, "" for all columns, and the function of Arrow that aggregates it."""


@frozen
class _Kind:
    """An aggregate of a column of a known type.

    Statements are templates: ``{a}`` is the accumulator, ``{v}`` a value, ``{b}`` another accumulator, ``{p0}`` and
    ``{p1}`` partial results. Names in ``bound`` are objects that they use. ``fits`` is false for an overflow.
    """

    result_type: str
    serializer: TypeSerializer[Any]
    fold: Sequence[str]
    merge: Sequence[str]
    default: Any = None
    result: str = "{a}"
    stored: str = "{a}"
    fits: str = ""
    value: str = ""
    """Converts a value before it is folded; empty to fold it as it is."""
    is_ordered: bool = False
    """Whether the order of records matters."""
    partials: Sequence[Partial] = ()
    combine: Sequence[str] = ()
    """Folds partial results. The first is converted as a value."""
    merge_columns: Callable[..., pa.Array] | None = None
    """Folds columns of partial results into a column of accumulators, with nulls for new ones.

    None if there is no vectorised form. Raises `pyarrow.ArrowInvalid` for a number that does not fit 64 bits.
    """
    result_column: Callable[[pa.Array], pa.Array] = lambda column: column
    """Converts a column of accumulators to results. Raises `pyarrow.ArrowInvalid` as `merge_columns`."""
    bound: Mapping[str, Any] = field(factory=dict)


_IF_VALUE: Final = "if {v} is not None:"


def _decimal_of(type_name: str) -> tuple[int, int] | None:
    if not type_name.startswith("decimal("):
        return None
    precision, scale = type_name[8:-1].split(",")
    return int(precision), int(scale)


def _bounded(precision: int, scale: int) -> str:
    return f"decimal({min(precision, _MAX_DIGITS)},{min(scale, _MAX_DIGITS)})"


def _count(column: Column | None, one: Aggregate) -> _Kind:
    add = "{a} += 1"
    return _Kind(
        "bigint",
        LongSerializer(),
        [add] if column is None else [_IF_VALUE, f"    {add}"],
        ["{a} += {b}"],
        default=0,
        partials=[("", "count_all") if column is None else (column.name, "count")],
        combine=["{a} += {p0}"],
        merge_columns=_sum_of_columns,
    )


def _sum_of_columns(column: pa.Array, partial: pa.Array) -> pa.Array:
    return pc.coalesce(pc.add_checked(column, partial), column, partial)


def _mean_of_columns(column: pa.Array, total: pa.Array, number: pa.Array) -> pa.Array:
    totals, numbers = column.flatten()
    totals = _sum_of_columns(totals.cast(pa.int64()), total).fill_null(0)
    fields = list(column.type)
    return pa.StructArray.from_arrays([totals.cast(fields[0].type), _sum_of_columns(numbers, number)], fields=fields)


def _means(column: pa.Array) -> pa.Array:
    """Divide sums by their counts as Python does, whose division is exact. Integers that no double holds raise."""
    totals, numbers = (part.cast(pa.int64()) for part in column.flatten())
    divisors = pc.if_else(pc.equal(numbers, 0), None, numbers)
    return pc.divide(totals.cast(pa.float64()), divisors.cast(pa.float64()))


def _added(add: str) -> Callable[[str], list[str]]:
    return lambda value: [f"if {value} is not None:", f"    {{a}} = {value} if {{a}} is None else {add.format(value)}"]


def _sum(column: Column, one: Aggregate) -> _Kind:
    digits = _decimal_of(column.type_name)
    if column.type_name in _FLOATS:
        fold = _added("{{a}} + {0}")
        return _Kind(
            "double",
            NullableSerializer(DoubleSerializer()),
            fold("{v}"),
            fold("{b}"),
            value=_WITHOUT_NEGATIVE_ZERO,
            is_ordered=True,
        )
    if digits is not None:
        fold, result_type = _added("ADD({{a}}, {0})"), _bounded(digits[0] + 10, digits[1])
        limit = decimal.Decimal(10) ** (min(digits[0] + 10, _MAX_DIGITS) - digits[1])
        return _Kind(
            result_type,
            NullableSerializer(BigDecSerializer()),
            fold("{v}"),
            fold("{b}"),
            fits="{a} is None or -LIMIT < {a} < LIMIT",
            partials=[(column.name, "sum")],
            combine=fold("{p0}"),
            bound={"ADD": _EXACT.add, "LIMIT": limit},
        )
    fold = _added("{{a}} + {0}")
    return _Kind(
        "bigint",
        NullableSerializer(LongSerializer()),
        fold("{v}"),
        fold("{b}"),
        fits=f"{{a}} is None or -{_LONG_LIMIT} <= {{a}} < {_LONG_LIMIT}",
        partials=[(column.name, "sum")],
        combine=fold("{p0}"),
        merge_columns=_sum_of_columns,
    )


def _avg(column: Column, one: Aggregate) -> _Kind:
    """Stores the sum and the number of values. Sums of integers are exact, so that their order does not matter."""
    digits = _decimal_of(column.type_name)
    add = "ADD({a}[0], {0})" if digits else "{a}[0] + {0}"
    kind = _Kind(
        "double",
        _pair(BigIntSerializer() if column.type_name in _INTEGERS else DoubleSerializer(), LongSerializer()),
        [_IF_VALUE, "    {a} = " + f"({add.replace('{0}', '{v}')}, {{a}}[1] + 1)"],
        ["{a} = " + f"({add.replace('{0}', '{b}[0]')}, {{a}}[1] + {{b}}[1])"],
        default=(0, 0),
        result="({a}[0] / {a}[1] if {a}[1] else None)",
    )
    if column.type_name in _FLOATS:
        return evolve(kind, default=(0.0, 0), is_ordered=True)
    kind = evolve(
        kind,
        partials=[(column.name, "sum"), (column.name, "count")],
        combine=["if {p1}:", "    {a} = " + f"({add.replace('{0}', '{p0}')}, {{a}}[1] + {{p1}})"],
    )
    if digits is None:
        return evolve(kind, merge_columns=_mean_of_columns, result_column=_means)
    precision, scale = min(digits[0] + 4, _MAX_DIGITS), min(digits[1] + 4, _MAX_DIGITS)
    quantum, limit = decimal.Decimal(1).scaleb(-scale), decimal.Decimal(10) ** (precision - scale)

    def mean(total: decimal.Decimal, number: int) -> decimal.Decimal:
        return _EXACT.quantize(_QUOTIENT.divide(total, decimal.Decimal(number)), quantum)

    return evolve(
        kind,
        result_type=f"decimal({precision},{scale})",
        serializer=_pair(BigDecSerializer(), LongSerializer()),
        default=(decimal.Decimal(0), 0),
        result="(MEAN({a}[0], {a}[1]) if {a}[1] else None)",
        fits="not {a}[1] or -LIMIT < MEAN({a}[0], {a}[1]) < LIMIT",
        bound={"ADD": _EXACT.add, "MEAN": mean, "LIMIT": limit},
    )


def _pair(first: TypeSerializer[Any], second: TypeSerializer[Any]) -> TypeSerializer[Any]:
    serializer: TypeSerializer[Any] = TupleSerializer((first, second))
    return serializer


def _extreme(sign: str) -> Callable[[Column, Aggregate], _Kind]:
    def make(column: Column, one: Aggregate) -> _Kind:
        is_float = column.type_name in _FLOATS
        has_columns = column.type_name in _INTEGERS or column.type_name == "string"
        # A NaN is the greatest number: it never replaces a minimum, and nothing replaces it as a maximum.
        nan = "" if not is_float else " or {a} != {a}" if sign == "<" else " or {0} != {0}"

        def fold(value: str) -> list[str]:
            better = f"{{a}} is None or {value} {sign} {{a}}{nan.replace('{0}', value)}"
            return [f"if {value} is not None and ({better}):", f"    {{a}} = {value}"]

        return _Kind(
            column.type_name,
            NullableSerializer(_scalar(column)),
            fold("{v}"),
            fold("{b}"),
            value=_value_of(column),
            partials=[(column.name, "min" if sign == "<" else "max")] if _has_kernel(column) else [],
            combine=fold("{p0}"),
            merge_columns=_extreme_of_columns(pc.less if sign == "<" else pc.greater) if has_columns else None,
            bound={"UTC": timezone.utc},
        )

    return make


def _extreme_of_columns(
    is_better: Callable[[pa.Array, pa.Array], pa.Array],
) -> Callable[[pa.Array, pa.Array], pa.Array]:
    def better(column: pa.Array, partial: pa.Array) -> pa.Array:
        partial = partial.cast(column.type)
        return pc.coalesce(pc.if_else(is_better(partial, column), partial, column), column, partial)

    return better


def _scalar(column: Column) -> TypeSerializer[Any]:
    serializer = scalar_serializer(column.arrow_type)
    assert serializer is not None
    return serializer


_WITHOUT_NEGATIVE_ZERO: Final = "{v} + 0.0"
"""The two zeros are equal, so their order among sorted records varies. A result must not depend on it."""


def _value_of(column: Column) -> str:
    """Return how to convert the values of a column, so that equal values are identical and Python compares them right.

    Python compares datetimes of one zone by their local time, in which an hour repeats when summer time ends.
    """
    if column.type_name in _FLOATS:
        return _WITHOUT_NEGATIVE_ZERO
    return "{v}.astimezone(UTC)" if column.type_name == "timestamp" else ""


def _has_kernel(column: Column) -> bool:
    """Whether Arrow computes minimum and maximum by group, with the result of `_extreme`."""
    return column.type_name not in _FLOATS and not pa.types.is_duration(column.arrow_type)


def _place(is_first: bool) -> Callable[[Column, Aggregate], _Kind]:
    """Stores the value and whether there is one, since it may be null."""

    def make(column: Column, one: Aggregate) -> _Kind:
        conditions = [*(["not {a}[1]"] if is_first else []), *(["{v} is not None"] if one.argument else [])]
        take = "{a} = ({v}, True)"
        return _Kind(
            column.type_name,
            _pair(NullableSerializer(_scalar(column)), BooleanSerializer()),
            [f"if {' and '.join(conditions)}:", f"    {take}"] if conditions else [take],
            ["if not {a}[1]:" if is_first else "if {b}[1]:", "    {a} = {b}"],
            default=(None, False),
            result="{a}[0]",
            value=_value_of(column),
            is_ordered=True,
            bound={"UTC": timezone.utc},
        )

    return make


def _sketch(column: Column, one: Aggregate) -> _Kind:
    """Stores the bytes of the sketch. While it is in use, the accumulator is the sketch."""
    sketch = SKETCHES[one.kind](column.type_name, one.argument)
    return _Kind(
        sketch.result_type,
        NullableSerializer(BytesSerializer()),
        [
            _IF_VALUE,
            "    if {a} is None or {a}.__class__ is bytes:",
            "        {a} = OPEN({a})",
            "    {a}.update({v})",
        ],
        ["{a} = MERGE({a}, {b})"],
        result="RESULT({a})",
        stored="({a} if {a} is None or {a}.__class__ is bytes else CLOSE({a}))",
        value="VALUE({v})",
        is_ordered=True,
        bound={
            "OPEN": sketch.opened,
            "CLOSE": sketch.closed,
            "MERGE": sketch.merged,
            "RESULT": sketch.result,
            "VALUE": sketch.value,
        },
    )


_NUMBERS: Final = "numbers"
_SCALARS: Final = "scalars"
_KINDS: Final[Mapping[str, tuple[Callable[[Any, Aggregate], _Kind], str]]] = {
    "count": (_count, ""),
    "sum": (_sum, _NUMBERS),
    "avg": (_avg, _NUMBERS),
    "min": (_extreme("<"), _SCALARS),
    "max": (_extreme(">"), _SCALARS),
    "first": (_place(is_first=True), _SCALARS),
    "last": (_place(is_first=False), _SCALARS),
    "distinct": (_sketch, _SCALARS),
    "top": (_sketch, "texts, integers or dates"),
    "percentile": (_sketch, _NUMBERS),
}
"""How to make the kind of an aggregate, and the columns that it takes."""


def _takes(what: str, column: Column) -> bool:
    type_name = column.type_name
    is_number = type_name in _INTEGERS or type_name in _FLOATS or type_name.startswith("decimal(")
    if what == _NUMBERS:
        return is_number
    if what == _SCALARS:
        return scalar_serializer(column.arrow_type) is not None and type_name != "void"
    return what == "" or type_name in _INTEGERS or type_name in ("string", "date")


def _kind_of(name: str, one: Aggregate, schema: DeclaredSchema, where: str) -> tuple[_Kind, Column | None]:
    make, what = _KINDS[one.kind]
    if one.column is None:
        return make(None, one), None
    column = schema.column(one.column)
    place = f"{where}: aggregate({name}={one})"
    if column is None:
        raise JobDefinitionError(
            f"{place}: its input has the columns {', '.join(schema.names)}, and no column {one.column!r}"
        )
    if not _takes(what, column):
        raise JobDefinitionError(
            f"{place}: the column is of type {column.type_name}, and the aggregate takes {what}; convert it with map() "
            f"before key_by()"
        )
    return make(column, one), column


def _field_name(name: str, one: Aggregate) -> str:
    """The name of an aggregate's field in the record of accumulators. Names of columns may be no identifiers."""
    full_name = f"{name}_{one.kind}"
    is_plain = full_name.isidentifier() and unicodedata.normalize("NFKC", full_name) == full_name
    return full_name if is_plain else attribute_of_column(full_name)


_FUNCTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "count": ("count", ""),
    "sum": ("sum_", ""),
    "avg": ("avg", ""),
    "min": ("min_", ""),
    "max": ("max_", ""),
    "first": ("first_value", "ignore_nulls"),
    "last": ("last_value", "ignore_nulls"),
    "distinct": ("approx_count_distinct", ""),
    "top": ("top_k", "k"),
    "percentile": ("approx_percentile", "percentage"),
}
"""The function that makes an aggregate of a kind, and the name of its argument."""


def _declared_rename(name: str, one: Aggregate, former_field: str) -> str:
    """Return the argument of ``aggregate()`` that continues from a former field; empty if it has another kind."""
    former = former_field.removesuffix(f"_{one.kind}")
    if former == former_field or _field_name(former, one) != former_field:
        return ""
    column = "" if one.column is None else f'"{one.column}", '
    names = ", ".join(f'"{known}"' for known in (*one.former_names, former))
    function, parameter = _FUNCTIONS[one.kind]
    argument = f"{parameter}={one.argument!r}, " if parameter else ""
    return f"{name}={function}({column}{argument}former_names=[{names}])"


class BoundAggregates(AggregateFunction[Any, Any, "tuple[Any, ...]"]):
    """Aggregates over records of a known schema.

    In memory the accumulators of a key are a list: a place for the caller, then one item per aggregate. They are stored
    as a record with one field per aggregate.
    """

    def __init__(self, aggregates: NamedAggregates, schema: DeclaredSchema, where: str) -> None:
        pairs = [_kind_of(name, one, schema, where) for name, one in aggregates]
        self._kinds = kinds = [kind for kind, _ in pairs]
        columns = list(dict.fromkeys(column.name for _, column in pairs if column is not None))
        self.columns = tuple(columns)
        """The columns that the aggregates read."""
        self._sources = [None if column is None else columns.index(column.name) for _, column in pairs]
        self._names = tuple(name for name, _ in aggregates)
        self.result_types = {name: kind.result_type for (name, _), kind in zip(aggregates, kinds, strict=True)}
        """The column types of the results, by name."""
        self.order = tuple(
            dict.fromkeys(column.name for kind, column in pairs if kind.is_ordered and column is not None)
        )
        """The columns that sort the records completely, as far as the aggregates see. Empty if no order matters."""
        self.partials = tuple(dict.fromkeys(one for kind in kinds for one in kind.partials))
        """What Arrow or Spark can aggregate before. Only if `is_exact`."""
        self.without_partials = tuple(name for name, kind in zip(self._names, kinds, strict=True) if not kind.partials)
        """The names of the aggregates that need the records."""
        self.is_exact = not self.without_partials
        """Whether partial results may be folded in any order."""
        self.has_columns = self.is_exact and all(kind.merge_columns is not None for kind in kinds)
        """Whether columns of accumulators can be folded, by `merge_columns` and `result_columns`."""
        self._wide = [
            one.name
            for one in (schema.column(name) for name, function in self.partials if function == "sum")
            if one is not None and (one.type_name == "bigint" or (_decimal_of(one.type_name) or (0,))[0] > 28)
        ]
        record_fields = [
            RecordField(
                _field_name(name, one),
                kind.serializer,
                tuple(_field_name(former, one) for former in one.former_names),
                default=kind.default,
                declared_rename=partial(_declared_rename, name, one),
            )
            for (name, one), kind in zip(aggregates, kinds, strict=True)
        ]
        names = [one.name for one in record_fields]
        self._record_class = attrs.make_class("Accumulators", names, frozen=True)
        self.serializer: TypeSerializer[Any] = AttrsSerializer.from_shape(
            RecordShape("Accumulators", self._record_class, tuple(record_fields), is_frozen=True)
        )
        """The serializer of the accumulator record."""
        self._row_class: Any = row_class(self._names)
        self._items = range(1, len(kinds) + 1)
        self._default = self._record_class(*[kind.default for kind in kinds])
        is_row = schema.record_class is None
        self._positions = [schema.names.index(name) if is_row else name for name in columns]
        self.fold: Callable[..., None] = self._folding()
        """``fold(accumulators, load, keys, key_groups, *columns)`` folds records into the accumulators by key."""
        self.combine: Callable[..., None] = self._combining() if self.is_exact else self.fold
        """As `fold`, for partial results. Only if `is_exact`."""
        self.unpack: Callable[[Any], list[Any]] = self._unpacking()
        """Converts a record to accumulators."""
        self.pack: Callable[[list[Any]], Any] = self._packing()
        """Converts accumulators to a record. Raises `AggregateOverflowError`."""
        self.rows_and_records: Callable[..., tuple[list[Any], list[Any]]] = self._ending()
        """``rows_and_records(accumulators, is_composite, *between)``: a row and a record for each key.

        A row has the key, the values ``between``, and the results.

        Raises `AggregateOverflowError` for accumulators that do not fit (`fits`).
        """
        self._merge: Callable[[list[Any], list[Any]], None] = self._merging()

    def columns_of(self, records: Sequence[Any]) -> list[list[Any]]:
        """The values of the columns that the aggregates read."""
        item = tuple.__getitem__
        return [
            [item(record, position) for record in records]
            if isinstance(position, int)
            else [getattr(record, position) for record in records]
            for position in self._positions
        ]

    def arrow_columns_of(self, batch: pa.RecordBatch) -> list[list[Any]]:
        return [column_values(batch.column(name)) for name in self.columns]

    def partial_results(
        self, batch: pa.RecordBatch, groups: Sequence[pa.Array], further: Sequence[tuple[str, pa.Array]] = ()
    ) -> Any:
        """Aggregate a batch by groups.

        Returns a table: the columns of the groups, one column per partial result, in order, and one for each pair of
        function and column in ``further``. None if a sum may overflow in Arrow, which does not report that.
        """
        if any(_may_overflow(batch.column(name)) for name in self._wide):
            return None
        read = [name for name in self.columns if any(name == column for column, _ in self.partials)]
        columns = {f"group{index}": group for index, group in enumerate(groups)}
        by = list(columns)
        columns.update({f"of {name}": batch.column(name) for name in read})
        columns.update({f"further{index}": column for index, (_, column) in enumerate(further)})
        calls: list[tuple[Any, str]] = [(f"of {name}" if name else [], function) for name, function in self.partials]
        calls += [(f"further{index}", function) for index, (function, _) in enumerate(further)]
        table = pa.Table.from_arrays(list(columns.values()), names=list(columns))
        results = [f"{name}_{function}" if name else function for name, function in calls]
        return table.group_by(by, use_threads=False).aggregate(calls).combine_chunks().select([*by, *results])

    def partials_together(self, tables: Sequence[pa.Table], group_count: int) -> pa.Table | None:
        """Return the partial results of several batches as one table. None if a sum may overflow.

        The columns are those of `partial_results`; functions ``further`` are ``max``.
        """
        if len(tables) == 1:
            return tables[0]
        # A table that was put together before has other names.
        names = [str(index) for index in range(tables[0].num_columns)]
        table = pa.concat_tables([one.rename_columns(names) for one in tables])
        functions = [_TOGETHER[function] for _, function in self.partials]
        functions += ["max"] * (len(names) - group_count - len(functions))
        calls = list(zip(names[group_count:], functions, strict=True))
        table = table.combine_chunks()
        if any(_may_overflow(table.column(name)) for name, function in calls if function == "sum"):
            return None
        by = names[:group_count]
        table = table.group_by(by, use_threads=False).aggregate(calls)
        return table.combine_chunks().select([*by, *(f"{name}_{function}" for name, function in calls)])

    def merge_columns(self, accumulators: pa.StructArray, partials: Sequence[pa.Array]) -> pa.StructArray:
        """Fold columns of partial results into stored accumulators, null if there are none. Only if `has_columns`.

        Raises `pyarrow.ArrowInvalid` for a number that does not fit 64 bits.
        """
        merged = [
            kind.merge_columns(column, *[partials[self.partials.index(one)] for one in kind.partials])
            for kind, column in zip(self._kinds, accumulators.flatten(), strict=True)
            if kind.merge_columns is not None
        ]
        return pa.StructArray.from_arrays(merged, fields=list(accumulators.type))

    def result_columns(self, accumulators: pa.StructArray) -> dict[str, pa.Array]:
        """Return the results of accumulators, by name. Only if `has_columns`. Raises as `merge_columns`."""
        columns = zip(self._names, self._kinds, accumulators.flatten(), strict=True)
        return {name: kind.result_column(column) for name, kind, column in columns}

    def fits(self, accumulators: list[Any]) -> bool:
        """Whether all results fit their types."""
        try:
            self.pack(accumulators)
        except AggregateOverflowError:
            return False
        return True

    def create_accumulator(self) -> Any:
        return self._default

    def add(self, value: Any, accumulator: Any) -> Any:
        return self.add_all([value], accumulator)

    def add_all(self, values: Sequence[Any], accumulator: Any) -> Any:
        """Fold records into the record of accumulators."""
        held = {None: self.unpack(accumulator)}
        places = [None] * len(values)
        self.fold(held, None, places, places, *self.columns_of(values))
        return self.pack(held[None])

    def get_result(self, accumulator: Any) -> tuple[Any, ...]:
        [row], _ = self.rows_and_records({(): self.unpack(accumulator)}, True)
        named: tuple[Any, ...] = tuple.__new__(self._row_class, row)
        return named

    def merge(self, left: Any, right: Any) -> Any:
        accumulators = self.unpack(left)
        self._merge(accumulators, self.unpack(right))
        return self.pack(accumulators)

    def _bound(self, function: GeneratedFunction, kind: _Kind, text: str, **names: str) -> str:
        for name, value in kind.bound.items():
            if name in text:
                text = text.replace(name, function.bind(name.lower(), value))
        return text.format(**names)

    def _loop(self, name: str, columns: Sequence[str], body: Callable[[GeneratedFunction], list[str]]) -> Any:
        """Generate a function that finds the accumulators of each row and runs the statements on them."""
        function = GeneratedFunction(name, ", ".join(("accumulators", "load", "keys", "key_groups", *columns)))
        rows = ", ".join(("keys", "key_groups", *columns))
        row = ", ".join(("key", "key_group", *(f"{column}_value" for column in columns)))
        return function.compile(
            [
                "find = accumulators.get",
                f"for {row} in zip({rows}, strict=True):",
                "    held = find(key)",
                "    if held is None:",
                "        held = accumulators[key] = load(key, key_group)",
                *indented(body(function)),
            ]
        )

    def _folding(self) -> Any:
        def body(function: GeneratedFunction) -> list[str]:
            lines = []
            for index, kind, source in zip(self._items, self._kinds, self._sources, strict=True):
                value = f"c{source}_value"
                if kind.value:
                    lines += self._converted(function, kind, f"v{index}", value)
                    value = f"v{index}"
                lines += [self._bound(function, kind, line, a=f"held[{index}]", v=value) for line in kind.fold]
            return lines

        return self._loop("fold", [f"c{index}" for index in range(len(self.columns))], body)

    def _converted(self, function: GeneratedFunction, kind: _Kind, name: str, value: str) -> list[str]:
        return [f"{name} = None if {value} is None else {self._bound(function, kind, kind.value, v=value)}"]

    def _combining(self) -> Any:
        return self._loop("combine", [f"p{index}" for index in range(len(self.partials))], self._combined)

    def _combined(self, function: GeneratedFunction) -> list[str]:
        lines = []
        for index, kind in zip(self._items, self._kinds, strict=True):
            places = {f"p{place}": f"p{self.partials.index(one)}_value" for place, one in enumerate(kind.partials)}
            if kind.value:
                lines += self._converted(function, kind, f"v{index}", places["p0"])
                places["p0"] = f"v{index}"
            lines += [self._bound(function, kind, line, a=f"held[{index}]", **places) for line in kind.combine]
        return lines

    def _unpacking(self) -> Any:
        names = [one.name for one in attrs.fields(self._record_class)]
        return GeneratedFunction("unpack", "record").compile(
            [f"return [None, {', '.join(f'record.{name}' for name in names)}]"]
        )

    def _packing(self) -> Any:
        function = GeneratedFunction("pack", "held")
        lines = self._overflow_checks(function)
        return function.compile([*lines, f"return {self._record_of(function)}"])

    def _ending(self) -> Any:
        function = GeneratedFunction("rows_and_records", "accumulators, is_composite, *between")
        results = [
            self._bound(function, kind, kind.result, a=f"held[{index}]")
            for index, kind in zip(self._items, self._kinds, strict=True)
        ]
        row = ", ".join(results)
        checks = self._overflow_checks(function)
        return function.compile(
            [
                *(["for held in accumulators.values():", *indented(checks)] if checks else []),
                "if is_composite:",
                f"    rows = [(*key, *between, {row}) for key, held in accumulators.items()]",
                "else:",
                f"    rows = [(key, *between, {row}) for key, held in accumulators.items()]",
                f"return rows, [{self._record_of(function)} for held in accumulators.values()]",
            ]
        )

    def _overflow_checks(self, function: GeneratedFunction) -> list[str]:
        lines = []
        for index, name, kind in zip(self._items, self._names, self._kinds, strict=True):
            if kind.fits:
                lines.append(f"if not ({self._bound(function, kind, kind.fits, a=f'held[{index}]')}):")
                overflow = function.bind("overflow", _overflow)
                lines.append(f"    {overflow}({name!r}, {kind.result_type!r})")
        return lines

    def _record_of(self, function: GeneratedFunction) -> str:
        items = [
            self._bound(function, kind, kind.stored, a=f"held[{index}]")
            for index, kind in zip(self._items, self._kinds, strict=True)
        ]
        return f"{function.bind('record', self._record_class)}({', '.join(items)})"

    def _merging(self) -> Any:
        function = GeneratedFunction("merge", "held, other")
        return function.compile(
            [
                self._bound(function, kind, line, a=f"held[{index}]", b=f"other[{index}]")
                for index, kind in zip(self._items, self._kinds, strict=True)
                for line in kind.merge
            ]
        )


def _overflow(name: str, result_type: str) -> None:
    raise AggregateOverflowError(
        f"the aggregate {name!r} does not fit its type {result_type}; cast the column to a wider type, such as "
        f"decimal(28,0), before key_by()"
    )


_TOGETHER: Final = {"count_all": "sum", "count": "sum", "sum": "sum", "min": "min", "max": "max"}
"""How to aggregate the results of a function of Arrow."""


def _may_overflow(column: pa.Array) -> bool:
    if pa.types.is_decimal(column.type):
        return True
    bounds: Mapping[str, int | None] = pc.min_max(column).as_py()
    largest = max(abs(bounds["min"] or 0), abs(bounds["max"] or 0))
    return bool(largest * len(column) >= _LONG_LIMIT)


_GROUPED_ALIKE: Final[Sequence[Callable[[pa.DataType], bool]]] = (
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_date,
    pa.types.is_timestamp,
)


def groups_alike(columns: Sequence[pa.Array]) -> bool:
    """Whether Arrow, which compares bytes, groups by these columns as Python does. It differs for floats."""
    return is_grouped_alike([column.type for column in columns])


def is_grouped_alike(types: Iterable[pa.DataType]) -> bool:
    """As `groups_alike`, for types of columns."""
    return all(any(is_type(data_type) for is_type in _GROUPED_ALIKE) for data_type in types)


@lru_cache(maxsize=64)
def bound_aggregates(aggregates: NamedAggregates, schema: DeclaredSchema | None, where: str) -> BoundAggregates:
    """Return aggregates over records of a schema. Raises `JobDefinitionError` for columns that do not fit."""
    if schema is None:
        raise JobDefinitionError(
            f"{where}: aggregate() needs the types of its columns, and the schema of its input is not known; declare "
            f"the schema of the source, or of the map() before key_by()"
        )
    return BoundAggregates(aggregates, schema, where)


def in_utc(time_ms: int) -> datetime:
    """Return a time in milliseconds as a timestamp. Raises `OverflowError` if Python has no such time."""
    return datetime.fromtimestamp(time_ms / 1000, timezone.utc)
