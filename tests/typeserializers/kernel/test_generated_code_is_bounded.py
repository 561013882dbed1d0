"""Generated functions of equal source share their code, so a worker that creates them per epoch does not grow."""

from __future__ import annotations

import linecache
from typing import Any

import pytest

import typeserializers as ts
from typeserializers import LongSerializer, TupleSerializer
from typeserializers.kernel import code_generation
from typeserializers.kernel.code_generation import GeneratedFunction, WriteEmitter


def noted_sources() -> int:
    return sum(name.startswith("<statebackend generated") for name in linecache.cache)


def test_equal_serializers_are_compiled_once() -> None:
    first = TupleSerializer([LongSerializer(), LongSerializer()]).codec
    before = noted_sources()
    for _ in range(100):
        again = TupleSerializer([LongSerializer(), LongSerializer()]).codec
        assert again.write((1, 2)) == first.write((1, 2))
    assert noted_sources() == before


def test_the_number_of_cached_sources_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_generation, "_compiled", {})
    monkeypatch.setattr(code_generation, "MAX_COMPILED_SOURCES", 10)
    before = noted_sources()
    for number in range(100):
        function = GeneratedFunction("constant", "")
        assert function.compile([f"return {number}"])() == number
    assert noted_sources() <= before + 10


class Faulty(ts.LongSerializer):
    """Generates invalid Python."""

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        emitter.line(f"if {value} is:")


def test_an_error_in_generated_code_is_not_reported_as_too_deep_nesting() -> None:
    with pytest.raises(SyntaxError, match="invalid syntax"):
        _ = Faulty().codec
    deep: ts.TypeSerializer[Any] = ts.LongSerializer()
    nested: Any = 1
    for _level in range(25):
        deep, nested = ts.ListSerializer(deep), [nested]
    assert deep.from_bytes(deep.to_bytes(nested)) == nested
