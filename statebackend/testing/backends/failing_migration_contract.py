"""The contract of failing migrations: nothing changes, and the error names the entry in the user's terms.

A migration must check that the new serializer reads the migrated bytes: a converter may return a value that a record
rejects, and a class may reject a value that its old version accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from snapshots.data_views import DataInputView, DataOutputView
from statebackend.state.errors import StateMigrationException
from statebackend.state.folding_states import AggregatingStateDescriptor, ReducingStateDescriptor
from statebackend.state.list_state import ListStateDescriptor
from statebackend.state.map_state import MapStateDescriptor
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.ttl_config import StateTtlConfig
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.testing.backends.evolving_serializers import CheckedLongSerializer, UncheckedLongSerializer
from statebackend.testing.backends.harness import BackendHarness, ContractBase, content
from statebackend.testing.backends.migration_contract import LAST, last
from typeserializers.containers.lists import ListSerializer
from typeserializers.kernel.record_families import converted_by
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.record_serializer import AttrsSerializer
from typeserializers.scalars.strings import StringSerializer

ORDER_NAME = "statebackend.contract.Order"
LINE_NAME = "statebackend.contract.OrderLine"

REJECTED = 13
"""The number for which all conversions below fail."""


@attrs.frozen
class LineV1:
    """Nested in `OrderV1`."""

    amount: int


@attrs.frozen
class OrderV1:
    """The stored record."""

    number: int
    lines: list[LineV1]


def code_of(number: int) -> str | None:
    """Convert a number; returns None for one number."""
    return None if number == REJECTED else str(number)


def code_of_or_error(number: int) -> str:
    """Convert a number; raises for one number."""
    if number == REJECTED:
        raise LookupError("no such order")
    return str(number)


@attrs.define
class LineV2:
    """Unchanged."""

    amount: int


@attrs.define
class WithCode:
    """The field is required, but StringSerializer would write the converter's None."""

    lines: list[LineV2]
    number: str = attrs.field(metadata=converted_by(code_of))


@attrs.frozen
class WithFrozenCode:
    """As `WithCode`, for values that are kept as objects."""

    number: str = attrs.field(metadata=converted_by(code_of))


@attrs.define
class WithCodeOrError:
    """The converter raises."""

    lines: list[LineV2]
    number: str = attrs.field(metadata=converted_by(code_of_or_error))


def _not_rejected(instance: Any, attribute: Any, value: int) -> None:
    if value == REJECTED:
        raise ValueError(f"{attribute.name} must not be {REJECTED}")


@attrs.define
class ValidatedLine:
    """A line with a validator that may reject old lines."""

    amount: int = attrs.field(validator=_not_rejected)


@attrs.define
class WithValidatedLines:
    """Validated lines inside a list. Another field requires the migration."""

    number: int
    lines: list[ValidatedLine]
    note: str = ""


@attrs.define
class WithCheck:
    """A class that validates itself after creation."""

    number: int
    lines: list[LineV2]
    note: str = ""

    def __attrs_post_init__(self) -> None:
        if self.number == REJECTED:
            raise ValueError("an unlucky order")


def order_v1() -> AttrsSerializer[OrderV1]:
    """Return the serializer of the stored record."""
    lines: ListSerializer[LineV1] = ListSerializer(AttrsSerializer(LineV1, name=LINE_NAME))
    return AttrsSerializer(OrderV1, name=ORDER_NAME, field_serializers={"lines": lines})


def order_of(record_class: type, line_class: type | None = LineV2) -> AttrsSerializer[Any]:
    """Return the serializer of a new version of an order."""
    if line_class is None:
        return AttrsSerializer(record_class, name=ORDER_NAME)
    lines: ListSerializer[Any] = ListSerializer(AttrsSerializer(line_class, name=LINE_NAME))
    return AttrsSerializer(record_class, name=ORDER_NAME, field_serializers={"lines": lines})


FAILURES: dict[str, tuple[Callable[[], AttrsSerializer[Any]], list[str]]] = {
    "a converter that returns None": (
        lambda: order_of(WithCode),
        [".number: ", "the converter code_of returned None", "the old value is 13"],
    ),
    "a converter of an immutable record": (
        lambda: order_of(WithFrozenCode, None),
        [".number: ", "the converter code_of returned None", "the old value is 13"],
    ),
    "a converter that raises": (
        lambda: order_of(WithCodeOrError),
        [".number: ", "the converter code_of_or_error raised LookupError: no such order", "the old value is 13"],
    ),
    "a validator of a nested record": (
        lambda: order_of(WithValidatedLines, ValidatedLine),
        [".lines[1]: ", "amount must not be 13", "amount=13"],
    ),
    "a class that checks itself": (
        lambda: order_of(WithCheck),
        ["an unlucky order", "number=13"],
    ),
}

Describe = Callable[[TypeSerializer[Any]], StateDescriptor]

KINDS: dict[str, tuple[Describe, Callable[[Any, Any], object]]] = {
    "value": (
        lambda serializer: ValueStateDescriptor("orders", serializer),
        lambda state, value: state.update(value),
    ),
    "list": (
        lambda serializer: ListStateDescriptor("orders", serializer),
        lambda state, value: state.update([value, value]),
    ),
    "map": (
        lambda serializer: MapStateDescriptor("orders", str, serializer),
        lambda state, value: state.put("the order", value),
    ),
    "reducing": (
        lambda serializer: ReducingStateDescriptor("orders", last, serializer),
        lambda state, value: (state.clear(), state.add(value)),
    ),
    "aggregating": (
        lambda serializer: AggregatingStateDescriptor("orders", LAST, serializer),
        lambda state, value: (state.clear(), state.add(value)),
    ),
}

PLACES = {"map": "the entry of 'the order'"}


class SloppyLongSerializer(UncheckedLongSerializer):
    """Writes an extra byte that its snapshot does not describe."""

    def serialize(self, value: int, out: DataOutputView) -> None:
        out.write_long(value)
        out.write_byte(0)

    def deserialize(self, source: DataInputView) -> int:
        value = source.read_long()
        source.read_byte()
        return value


class FailingMigrationContract(ContractBase):
    """Migrations that fail on an entry."""

    @pytest.mark.parametrize("canonical", [False, True])
    @pytest.mark.parametrize("kind", list(KINDS))
    @pytest.mark.parametrize("failure", list(FAILURES))
    def test_a_value_that_the_new_serializer_rejects_is_named_and_changes_nothing(
        self, harness: BackendHarness, failure: str, kind: str, canonical: bool
    ) -> None:
        describe, write = KINDS[kind]
        new, expected_texts = FAILURES[failure]
        backend = harness.open(self.create_state_backend())
        for key in range(20):
            harness.at(backend, key)
            state: Any = backend.get_state(describe(order_v1()))
            write(state, OrderV1(key, [LineV1(1), LineV1(key), LineV1(3)]))
        expected = content(harness, backend, describe(order_v1()))
        handle = harness.export(backend) if canonical else harness.snapshot(backend).handle
        restored = self.reopen(harness, handle)
        with pytest.raises(StateMigrationException) as rejected:
            restored.get_state(describe(new()))
        message = str(rejected.value)
        wanted = ["operator 'operator-under-test'", "state 'orders'", "key 13", *expected_texts]
        assert [text for text in [*wanted, PLACES.get(kind, "")] if text not in message] == [], message
        carried = harness.snapshot(restored).handle
        exported = harness.export(restored)
        assert content(harness, restored, describe(order_v1())) == expected
        for again in (handle, carried, exported):
            assert content(harness, self.reopen(harness, again), describe(order_v1())) == expected

    def test_the_error_names_the_namespace(self, harness: BackendHarness) -> None:
        describe, write = KINDS["value"]
        backend = harness.open(self.create_state_backend())
        harness.at(backend, 4)
        namespaces = StringSerializer()
        for number in (12, REJECTED):
            state: Any = backend.get_partitioned_state(f"window {number}", namespaces, describe(order_v1()))
            write(state, OrderV1(number, []))
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        with pytest.raises(StateMigrationException, match=r"key 4 in namespace 'window 13' .*code_of returned None"):
            restored.get_or_create_keyed_state(namespaces, describe(order_of(WithCode)))

    def test_values_with_an_added_time_to_live_are_checked(self, harness: BackendHarness) -> None:
        ttl = StateTtlConfig(1000)
        for old, new in ((None, ttl), (ttl, ttl), (ttl, None)):
            stored = harness.open(self.create_state_backend())
            harness.at(stored, 4)
            stored.get_state(ValueStateDescriptor("orders", order_v1(), ttl=old)).update(OrderV1(REJECTED, []))
            restored = self.reopen(harness, harness.snapshot(stored).handle)
            with pytest.raises(StateMigrationException, match=r"key 4 .*\.number: .*code_of returned None"):
                restored.get_state(ValueStateDescriptor("orders", order_of(WithCode), ttl=new))

    @pytest.mark.parametrize("kind", ["value", "map"])
    def test_trailing_bytes_are_not_an_entry_of_the_old_serializer(self, harness: BackendHarness, kind: str) -> None:
        describe, write = KINDS[kind]
        backend = harness.open(self.create_state_backend())
        harness.at(backend, 7)
        write(backend.get_state(describe(SloppyLongSerializer())), 5)
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        with pytest.raises(StateMigrationException, match=r"key 7.* ends at byte"):
            restored.get_state(describe(CheckedLongSerializer()))

    def test_a_migration_in_a_reused_local_directory_is_not_repeated(self, harness: BackendHarness) -> None:
        describe, write = KINDS["value"]
        other = ValueStateDescriptor("other", int)
        backend = harness.open(self.create_state_backend(), local="kept")
        for key in range(5):
            harness.at(backend, key)
            write(backend.get_state(describe(order_v1())), OrderV1(key, []))
            backend.get_state(other).update(key)
        handle = harness.snapshot(backend).handle
        backend.close()
        added = ValueStateDescriptor("added", int)
        migrated = harness.open(self.create_state_backend(), handle, local="kept")
        expected = {key: WithCode([], str(key)) for key in range(5)}
        assert content(harness, migrated, describe(order_of(WithCode))) == expected
        harness.at(migrated, 3)
        migrated.get_state(added).update(30)
        handle = harness.snapshot(migrated).handle
        migrated.close()
        again = harness.open(self.create_state_backend(), handle, local="kept")
        assert content(harness, again, describe(order_of(WithCode))) == expected
        assert content(harness, again, added) == {3: 30}
        assert content(harness, again, other) == {key: key for key in range(5)}
