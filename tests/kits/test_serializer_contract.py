"""Every serializer of ours under the contract; none may be left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import contract_cases
import pytest
from hypothesis import strategies as st

import migration  # noqa: F401  (imports every serializer that registers a snapshot)
import typeserializers as ts
from snapshots import registered_names
from typeserializers.contract import SerializerContract
from typeserializers.contract.serializer_contract import Misfit


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

NOT_UNDER_CONTRACT = {
    "ReferenceSerializerSnapshot": "it means nothing outside the record that holds it, which is under contract",
    "PickledSerializerSnapshot": "it describes whatever serializer was persisted whole",
    "TypeSerializerConfigSnapshot": "it describes whatever serializer was persisted whole",
    "TtlAwareSerializerSnapshot": "it is a view of another snapshot, which backends make and never write",
}


def test_every_registered_snapshot_belongs_to_a_serializer_under_contract() -> None:
    covered = {type(case.make().snapshot_configuration()) for case in contract_cases.CASES.values()}
    ours = {found for found in registered_names().values() if found.__module__.startswith("typeserializers.")}
    missing = {found.__name__ for found in ours - covered} - set(NOT_UNDER_CONTRACT)
    assert not missing, f"write cases for {', '.join(sorted(missing))} in contract_cases.py"


class Careless(ts.TypeSerializer[int]):
    """Breaks laws: writes before it looks, and reads past the end."""

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


def test_the_contract_finds_what_is_wrong_with_a_careless_serializer() -> None:
    class Contract(SerializerContract):
        def serializer(self) -> ts.TypeSerializer[Any]:
            return Careless()

        def values(self) -> Sequence[Any]:
            return [1, 2]

    contract = Contract()
    for law in (
        contract.test_its_snapshot_comes_back_and_accepts_it,
        contract.test_what_does_not_fit_is_refused_and_nothing_is_written,
        contract.test_a_value_comes_back_alone_in_sequence_and_as_a_copy,
        contract.test_truncated_bytes_are_refused,
    ):
        with pytest.raises((Exception, pytest.fail.Exception)):
            law()
