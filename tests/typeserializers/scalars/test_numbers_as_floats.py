"""Numbers in float fields: each keeps its value, or is rejected, in jobs as in plans."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

import typeserializers as ts
from snapshots import DataOutputView, SerializationError
from statebackend.state.value_forms import compile_exact

ODD = (1 << 53) + 1
DOUBLE, FLOAT = ts.DoubleSerializer(), ts.FloatSerializer()


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (DOUBLE, ODD),
        (DOUBLE, -ODD),
        (DOUBLE, Decimal("0.1")),
        (DOUBLE, Fraction(1, 3)),
        (FLOAT, (1 << 24) + 1),
        (FLOAT, Decimal("0.1")),
        (ts.ListSerializer(DOUBLE), [0.5, ODD]),
        (ts.MapSerializer(ts.StringSerializer(), DOUBLE), {"a": ODD}),
        (ts.TupleSerializer([ts.StringSerializer(), DOUBLE]), ("a", ODD)),
        (ts.NullableSerializer(DOUBLE), ODD),
        (ts.DoublePrimitiveArraySerializer(), [0.5, ODD]),
        (ts.FloatPrimitiveArraySerializer(), [0.5, (1 << 24) + 1]),
        (ts.DoubleValueSerializer(), ODD),
    ],
    ids=repr,
)
def test_a_number_that_would_change_is_rejected_by_every_writer(serializer: Any, value: Any) -> None:
    for write in (
        serializer.to_bytes,
        lambda given: serializer.serialize(given, DataOutputView()),
        # The value that a backend keeps after an update.
        compile_exact(serializer, lambda: "the value"),
    ):
        with pytest.raises(SerializationError, match="cannot be stored as a float: it would become"):
            write(value)
    with pytest.raises(ValueError, match="it would become"):
        serializer.codec.write(value)


class Halved(float):
    """A custom float class."""


@pytest.mark.parametrize(
    ("serializer", "value", "stored"),
    [
        (DOUBLE, ODD - 1, float(ODD - 1)),
        (DOUBLE, True, 1.0),
        (DOUBLE, Decimal("0.5"), 0.5),
        (DOUBLE, Fraction(1, 4), 0.25),
        (DOUBLE, math.inf, math.inf),
        (DOUBLE, Halved(0.1), 0.1),
        (DOUBLE, 0.1, 0.1),
        (FLOAT, 0.1, pytest.approx(0.1)),
        (FLOAT, Halved(0.1), pytest.approx(0.1)),
        (FLOAT, 1 << 24, float(1 << 24)),
        (ts.FloatPrimitiveArraySerializer(), [0.1, 7], pytest.approx([0.1, 7.0])),
    ],
    ids=repr,
)
def test_exact_numbers_are_kept_and_a_float_is_rounded_to_its_type(serializer: Any, value: Any, stored: Any) -> None:
    assert serializer.from_bytes(serializer.to_bytes(value)) == stored


@pytest.mark.parametrize("value", [math.nan, -math.nan, Decimal("NaN"), Halved("nan")], ids=repr)
def test_nan_has_one_form(value: Any) -> None:
    assert DOUBLE.to_bytes(value) == bytes.fromhex("7ff8000000000000")
    assert ts.DoublePrimitiveArraySerializer().to_bytes([value])[4:] == DOUBLE.to_bytes(math.nan)


@pytest.mark.parametrize("value", ["1.5", None, 10**400, b"x"], ids=str)
def test_another_value_is_reported_by_the_range_check(value: Any) -> None:
    with pytest.raises(SerializationError, match="is not a number within the range of IEEE binary64"):
        DOUBLE.to_bytes(value)
