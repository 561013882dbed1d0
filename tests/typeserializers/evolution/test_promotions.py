"""Promotions between scalars, and the reported rounding."""

from __future__ import annotations

import decimal
import itertools

import pytest

import typeserializers as ts
from typeserializers.evolution.plans import PROMOTIONS, as_binary32

INTEGERS = (ts.ByteSerializer, ts.ShortSerializer, ts.IntSerializer, ts.LongSerializer, ts.BigIntSerializer)
ROUNDING = {
    (ts.IntSerializer, ts.FloatSerializer): "2**24",
    (ts.LongSerializer, ts.FloatSerializer): "2**24",
    (ts.LongSerializer, ts.DoubleSerializer): "2**53",
}


def test_exactly_these_promotions_exist() -> None:
    assert PROMOTIONS.keys() == {
        *itertools.combinations(INTEGERS, 2),
        *itertools.product(INTEGERS, [ts.BigDecSerializer]),
        *itertools.product(INTEGERS[:-1], [ts.FloatSerializer, ts.DoubleSerializer]),
        (ts.FloatSerializer, ts.DoubleSerializer),
        (ts.CharSerializer, ts.StringSerializer),
        (ts.StringSerializer, ts.BytesSerializer),
        (ts.BytesSerializer, ts.StringSerializer),
    }


@pytest.mark.parametrize("pair", PROMOTIONS, ids=lambda pair: f"{pair[0].__name__} to {pair[1].__name__}")
def test_only_rounding_promotions_name_a_limit(pair: tuple[type, type]) -> None:
    promotion = PROMOTIONS[pair]
    assert promotion.is_injective is (pair not in ROUNDING)
    assert ("rounded" in promotion.reason) is (pair in ROUNDING)
    assert ROUNDING.get(pair, "") in promotion.reason


def test_decimals_are_exact_and_a_float_has_the_value_of_its_bytes() -> None:
    to_decimal = PROMOTIONS[ts.BigIntSerializer, ts.BigDecSerializer].function
    assert to_decimal is not None
    assert to_decimal(10**30 + 1) == decimal.Decimal(10**30 + 1)
    assert to_decimal(None) is None
    assert as_binary32((1 << 24) + 1) == 1 << 24
