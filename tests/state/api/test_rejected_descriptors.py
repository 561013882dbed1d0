"""Rejected descriptors, TTL settings and keys, on each side of every bound."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from attrs import evolve

from statebackend import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SplitListStateDescriptor,
    StateTtlConfig,
    UnionListStateDescriptor,
    ValueStateDescriptor,
)
from statebackend.state.errors import StateRegistrationError, StateRestoreError
from statebackend.state.key_columns import KEY_COLUMNS, columns_of_key, serializer_of_key
from statebackend.state.ttl_config import LONGEST_TTL_MS, IncrementalCleanup, TtlStateVisibility, TtlUpdateType
from statebackend.testing.backends.evolving_records import MUTABLE_SUM
from typeserializers import ListSerializer, LongSerializer, NullableSerializer, TupleSerializer

DESCRIPTORS: list[Any] = [
    ValueStateDescriptor("state", int),
    ListStateDescriptor("state", int),
    MapStateDescriptor("state", str, int),
    ReducingStateDescriptor("state", max, int),
    AggregatingStateDescriptor("state", MUTABLE_SUM.aggregate_function, MUTABLE_SUM.accumulator_serializer),
]


@pytest.mark.parametrize("entries", [0, -1, True, 1.0, None, LONGEST_TTL_MS + 1])
def test_clean_up_visits_an_integer_number_of_entries_from_one(entries: Any) -> None:
    with pytest.raises(StateRegistrationError, match="entries_per_access must be a whole number from 1 to "):
        IncrementalCleanup(entries)
    assert [IncrementalCleanup(number).entries_per_access for number in (1, LONGEST_TTL_MS)] == [1, LONGEST_TTL_MS]


@pytest.mark.parametrize("ttl", [0, -1, True, 1.0, None, "1 month", "7", timedelta(0), LONGEST_TTL_MS + 1])
def test_a_ttl_is_a_duration_of_at_least_a_millisecond(ttl: Any) -> None:
    with pytest.raises(StateRegistrationError, match=r"the time-to-live is .*State that never expires has no StateTtl"):
        StateTtlConfig(ttl)
    assert [StateTtlConfig(number).ttl_ms for number in (1, LONGEST_TTL_MS)] == [1, LONGEST_TTL_MS]
    for ttl in ("7 days", timedelta(days=7), 604_800_000):
        assert StateTtlConfig(ttl) == StateTtlConfig(ttl_ms=604_800_000)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"update_type": TtlStateVisibility.NEVER_RETURN_EXPIRED}, "update_type must be of type TtlUpdateType"),
        ({"visibility": TtlUpdateType.ON_CREATE_AND_WRITE}, "visibility must be of type TtlStateVisibility"),
        ({"cleanup_full_snapshot": 1}, "cleanup_full_snapshot must be of type bool"),
        ({"incremental_cleanup": 2}, "incremental_cleanup must be of type IncrementalCleanup or None"),
        ({"incremental_cleanup": False}, "incremental_cleanup must be of type IncrementalCleanup or None"),
    ],
)
def test_each_setting_of_a_ttl_has_its_type(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(StateRegistrationError, match=expected):
        StateTtlConfig(1000, **settings)
    with pytest.raises(StateRegistrationError, match="for_every_record must be of type bool"):
        IncrementalCleanup(for_every_record=settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("descriptor", DESCRIPTORS, ids=lambda descriptor: descriptor.kind.name)
def test_a_ttl_is_a_configuration_and_not_a_number(descriptor: Any) -> None:
    with pytest.raises(StateRegistrationError, match="state 'state': ttl must be a StateTtlConfig, not 1000"):
        evolve(descriptor, ttl=1000)


@pytest.mark.parametrize("columns", [(), ("bigint",), ("string", "int"), tuple(KEY_COLUMNS)], ids=str)
def test_key_columns_are_derived_from_the_serializer(columns: tuple[str, ...]) -> None:
    assert columns_of_key(serializer_of_key(columns)) == columns


@pytest.mark.parametrize(
    "serializer",
    [
        ListSerializer(LongSerializer()),
        TupleSerializer([LongSerializer(), ListSerializer(LongSerializer())]),
        TupleSerializer([TupleSerializer([LongSerializer()])]),
    ],
    ids=repr,
)
def test_unsupported_keys_are_rejected_with_the_supported_ones(serializer: Any) -> None:
    with pytest.raises(StateRestoreError, match=r"are not keys of a job.*keys are .*bigint.*, and tuples of them"):
        columns_of_key(serializer)


def test_a_default_that_the_serializer_cannot_write_is_rejected_at_once() -> None:
    with pytest.raises(StateRegistrationError, match=r"state 'count': the default 9223372036854775808 is not a value"):
        ValueStateDescriptor("count", int, 1 << 63)
    assert ValueStateDescriptor("count", int, (1 << 63) - 1).default == (1 << 63) - 1


@pytest.mark.parametrize("descriptor", [ListStateDescriptor, SplitListStateDescriptor, UnionListStateDescriptor])
def test_elements_of_a_list_are_not_none(descriptor: Any) -> None:
    for hint in (int | None, NullableSerializer(LongSerializer())):
        message = (
            "list state 'l': None cannot be an element of a list state, so its elements cannot be of type int | None"
        )
        with pytest.raises(StateRegistrationError, match=re.escape(message)):
            descriptor("l", hint)
    descriptor("l", list[int | None])
