"""The contract of every built-in serializer; none is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import contract_cases
import pytest
from hypothesis import strategies as st

import migration  # noqa: F401  (imports every serializer that registers a snapshot)
import typeserializers as ts
from snapshots import (
    CompositeTypeSerializerSnapshot,
    DataInputView,
    SimpleTypeSerializerSnapshot,
    SnapshotFormatError,
    registered_names,
)
from statebackend.testing.serializers import Misfit, SerializerContract

pytestmark = pytest.mark.slow


def contract_class(case: contract_cases.Case) -> type[SerializerContract]:
    class Contract(SerializerContract):
        expected_length = case.length
        is_picklable = case.is_picklable
        reads_hostile_bytes = case.reads_hostile_bytes

        def serializer(self) -> ts.TypeSerializer[Any]:
            return case.make()

        def values(self) -> Sequence[Any]:
            return [value for value in case.values if value is not None] or list(case.values)

        def equal(self, left: Any, right: Any) -> bool:
            return case.equal(left, right) if case.equal is not None else super().equal(left, right)

        def different_serializers(self) -> Sequence[ts.TypeSerializer[Any]]:
            return case.different

        def strategy(self) -> st.SearchStrategy[Any] | None:
            return case.strategy

        def misfits(self) -> Sequence[Any]:
            return [Misfit(), *(case.misfits or ())]

    return Contract


for _name, _case in contract_cases.CASES.items():
    _title = "Test" + "".join(part.title() for part in _name.split("-")) + "Serializer"
    _class = contract_class(_case)
    _class.__name__ = _class.__qualname__ = _title
    globals()[_title] = _class

CASES = list(contract_cases.CASES.values())

NOT_UNDER_CONTRACT = {
    "ReferenceSerializerSnapshot": "it means nothing outside the record that holds it, which is under contract",
    "PickledSerializerSnapshot": "it contains a pickled serializer of any class",
    "TypeSerializerConfigSnapshot": "it contains a pickled serializer of any class",
    "KryoSerializerSnapshot": "only Java reads the values",
    "VariantSerializerSnapshot": "only Java reads the values",
    "TtlAwareSerializerSnapshot": "it is a view of another snapshot, which backends make and never write",
}


def test_every_registered_snapshot_belongs_to_a_serializer_under_contract() -> None:
    covered = {type(case.make().snapshot_configuration()) for case in contract_cases.CASES.values()}
    ours = {found for found in registered_names().values() if found.__module__.startswith("typeserializers.")}
    missing = {found.__name__ for found in ours - covered} - set(NOT_UNDER_CONTRACT)
    assert not missing, f"write cases for {', '.join(sorted(missing))} in contract_cases.py"


def test_every_serializer_with_a_configuration_is_compared_with_others_of_its_class() -> None:
    for name, case in contract_cases.CASES.items():
        serializer = case.make()
        assert all(type(other) is type(serializer) for other in case.different), name
        has_configuration = serializer.configuration() not in ((), None)
        is_compared = any(type(other.make()) is type(serializer) and other.different for other in CASES)
        assert is_compared or not has_configuration, f"{name}: write serializers that are configured otherwise"


class Unsaid(ts.CompiledTypeSerializer[Any]):
    """Declares no configuration, although its snapshot has one."""

    def __init__(self, inner: ts.TypeSerializer[Any]) -> None:
        self.inner = inner

    def write_to(self, value: Any, out: Any) -> None:
        self.inner.serialize(value, out)

    def read_from(self, source: Any) -> Any:
        return self.inner.deserialize(source)

    def emit_write(self, emitter: Any, value: str) -> None:
        self.inner.emit_write(emitter, value)

    def emit_read(self, emitter: Any) -> str:
        return self.inner.emit_read(emitter)

    def create_instance(self) -> Any:
        return self.inner.create_instance()

    def snapshot_configuration(self) -> Any:
        return UnsaidSnapshot(self)


class UnsaidSnapshot(CompositeTypeSerializerSnapshot[Any, Unsaid]):
    outer_serializer_class = Unsaid

    def nested_serializers(self, outer: Unsaid) -> Sequence[ts.TypeSerializer[Any]]:
        return (outer.inner,)

    def create_outer_serializer(self, nested: Sequence[ts.TypeSerializer[Any]]) -> Unsaid:
        return Unsaid(nested[0])


class Forgetful(Unsaid):
    """Declares that it has no configuration."""

    def configuration(self) -> Any:
        return ()

    def snapshot_configuration(self) -> Any:
        return ForgetfulSnapshot(self)


class ForgetfulSnapshot(UnsaidSnapshot):
    outer_serializer_class = Forgetful

    def create_outer_serializer(self, nested: Sequence[ts.TypeSerializer[Any]]) -> Unsaid:
        return Forgetful(nested[0])


class ReadsAnyVersion(SimpleTypeSerializerSnapshot[int]):
    def read_snapshot(self, read_version: int, source: Any) -> None:
        pass

    def create_serializer(self) -> ts.TypeSerializer[int]:
        return Undemanding()


class HasAnyVersion(ReadsAnyVersion):
    @property
    def current_version(self) -> int:
        return 2**31 - 1

    def read_snapshot(self, read_version: int, source: Any) -> None:
        self.check_version(read_version)


class Undemanding(ts.LongSerializer):
    snapshot_class: type[Any] = ReadsAnyVersion

    def snapshot_configuration(self) -> Any:
        return self.snapshot_class()


class MoreUndemanding(Undemanding):
    snapshot_class = HasAnyVersion


def _contract_of(made: ts.TypeSerializer[Any], others: Sequence[ts.TypeSerializer[Any]] = ()) -> SerializerContract:
    class Contract(SerializerContract):
        def serializer(self) -> ts.TypeSerializer[Any]:
            return made

        def different_serializers(self) -> Sequence[ts.TypeSerializer[Any]]:
            return others

    return Contract()


def test_the_contract_detects_missing_configuration() -> None:
    long, string = ts.LongSerializer(), ts.StringSerializer()
    laws = _contract_of(Forgetful(long), [Forgetful(string)])
    with pytest.raises(AssertionError, match="must contain every nested"):
        laws.test_composites_with_different_parts_are_not_equal()
    with pytest.raises(AssertionError, match="configuration"):
        laws.test_different_configurations_mean_different_serializers_and_snapshots()
    laws = _contract_of(ts.RowSerializer([long], ["a"]), [ts.RowSerializer([long])])
    with pytest.raises(AssertionError):
        laws.test_different_configurations_mean_different_serializers_and_snapshots()
    laws = _contract_of(ts.ListSerializer(long), [ts.ListSerializer(string), ts.ListSerializer(ts.IntSerializer())])
    laws.test_different_configurations_mean_different_serializers_and_snapshots()


@pytest.mark.parametrize("serializer", [Undemanding(), MoreUndemanding()])
def test_the_contract_detects_a_snapshot_that_accepts_any_version(serializer: ts.TypeSerializer[Any]) -> None:
    with pytest.raises(pytest.fail.Exception):
        _contract_of(serializer).test_a_snapshot_of_an_unknown_version_is_rejected()


def test_a_composite_without_declaration_is_compared_by_its_snapshot() -> None:
    long = Unsaid(ts.LongSerializer())
    assert long == Unsaid(ts.LongSerializer())
    assert hash(long) == hash(Unsaid(ts.LongSerializer()))
    assert long != Unsaid(ts.IntSerializer())
    _contract_of(long).test_composites_with_different_parts_are_not_equal()


class Careless(ts.TypeSerializer[int]):
    """Breaks rules: writes before it checks, and reads past the end."""

    def serialize(self, value: int, out: Any) -> None:
        out.write(b"junk")
        out.write_long(value)

    def deserialize(self, source: Any) -> int:
        source.read(4)
        return int.from_bytes(source.data[source.position : source.position + 8], "big")

    def create_instance(self) -> int:
        return 0

    def snapshot_configuration(self) -> Any:
        return ts.LongSerializer().snapshot_configuration()


def test_the_contract_detects_the_errors_of_a_careless_serializer() -> None:
    class Contract(SerializerContract):
        def serializer(self) -> ts.TypeSerializer[Any]:
            return Careless()

        def values(self) -> Sequence[Any]:
            return [1, 2]

    contract = Contract()
    for law in (
        contract.test_its_restored_snapshot_is_compatible_as_is,
        contract.test_a_value_that_does_not_fit_leaves_no_bytes,
        contract.test_a_value_comes_back_alone_in_sequence_and_as_a_copy,
        contract.test_truncated_bytes_are_rejected,
    ):
        with pytest.raises((Exception, pytest.fail.Exception)):
            law()


OURS = sorted(name for name, found in registered_names().items() if found.__module__.startswith("typeserializers."))


@pytest.mark.parametrize("name", OURS)
def test_no_built_in_snapshot_reads_an_unknown_version(name: str) -> None:
    snapshot_class = registered_names()[name]
    newest = snapshot_class().current_version
    for version in (-1, 0, newest + 1):
        with pytest.raises(SnapshotFormatError, match=f"version {version}"):
            snapshot_class().read_snapshot(version, DataInputView(bytes(1000)))
