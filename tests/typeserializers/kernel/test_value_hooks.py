"""Value hooks of a serializer hold for its own code only."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

import typeserializers as ts
from snapshots import DataInputView, DataOutputView
from statebackend.state.value_forms import compile_exact, compile_size
from typeserializers.kernel.code_generation import GeneratedFunction
from typeserializers.kernel.value_hooks import exact_condition, size_expression


class Even(ts.LongSerializer):
    """Rejects values that its base class writes."""

    def write_to(self, value: int, out: DataOutputView) -> None:
        if value % 2:
            raise ValueError("odd")
        super().write_to(value, out)


class Renamed(ts.LongSerializer):
    """Reads and writes like its base class."""

    def __repr__(self) -> str:
        return "Renamed()"


class Word(ts.TypeSerializer[str]):
    """A third-party serializer with value hooks."""

    asked: ClassVar[list[str]] = []

    def serialize(self, value: str, out: DataOutputView) -> None:
        self.asked.append(value)
        out.write_utf(value)

    def deserialize(self, source: DataInputView) -> str:
        return source.read_utf()

    def create_instance(self) -> str:
        return ""

    def snapshot_configuration(self) -> Any:
        raise NotImplementedError

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str:
        return f"type({first}) is str and {again}.isalpha()"

    def emit_size(self, value: str, function: GeneratedFunction) -> str:
        return f"1000 * len({value})"


def condition(serializer: ts.TypeSerializer[Any]) -> str | None:
    return exact_condition(serializer, "value", "value", GeneratedFunction("exact", "value"))


def test_a_subclass_with_another_format_does_not_inherit_the_hooks() -> None:
    assert condition(ts.LongSerializer()) == condition(Renamed()) is not None
    assert condition(Even()) is None
    assert condition(ts.TupleSerializer([ts.LongSerializer(), Even()])) is None
    assert compile_exact(Renamed(), lambda: "here")(3) == 3
    assert size_expression(Even(), "value", GeneratedFunction("size", "value")) is not None


def test_a_third_party_serializer_decides_for_its_values_alone_and_inside_others() -> None:
    Word.asked.clear()
    for serializer, value in ((Word(), "abc"), (ts.TupleSerializer([Word(), ts.LongSerializer()]), ("abc", 1))):
        assert compile_exact(serializer, lambda: "here")(value) is value
        size = compile_size(serializer)
        assert size is not None
        assert size(value) >= 3000
    assert not Word.asked
    assert compile_exact(Word(), lambda: "here")("a1") == "a1"
    assert Word.asked == ["a1"]


@pytest.mark.parametrize(
    ("serializer", "least", "largest"), [(ts.ByteSerializer(), -128, 127), (ts.IntSerializer(), -(2**31), 2**31 - 1)]
)
def test_the_bounds_of_integers_are_those_of_their_width(serializer: Any, least: int, largest: int) -> None:
    expression = condition(serializer)
    assert expression is not None
    for value, fits in ((least, True), (largest, True), (least - 1, False), (largest + 1, False), (True, False)):
        assert eval(expression, {"value": value}) is fits
