"""Serializers that compile: the base of all built-in ones.

Such a serializer has its layout written down twice: against the views (`write_to`, `read_from`), which is the readable
specification, and as generated code (`emit_write`, `emit_read`), which is what runs. The two must agree on every byte
and on every refusal; the contract kit checks it with generated values.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

from snapshots.data_views import DataInputView, DataOutputView
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter, is_nested_too_deep
from typeserializers.kernel.type_serializer import Codec, TypeSerializer

T = TypeVar("T")


class CompiledTypeSerializer(TypeSerializer[T]):
    """A serializer with a code-generation hook beside its view-based pair."""

    @abstractmethod
    def write_to(self, value: T, out: DataOutputView) -> None:
        """Appends the value; may leave a part behind when it raises, which `serialize` cleans up."""

    @abstractmethod
    def read_from(self, source: DataInputView) -> T:
        """Reads one value."""

    @abstractmethod
    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        """Emits the code that writes the value of the expression ``value``."""

    @abstractmethod
    def emit_read(self, emitter: ReadEmitter) -> str:
        """Emits the code that reads one value; the returned expression is valid after the next flush."""

    def serialize(self, value: T, out: DataOutputView) -> None:
        start = out.position
        try:
            self.write_to(value, out)
        except Exception as error:
            out.truncate(start)
            raise self.serialization_error(value, error) from error

    def deserialize(self, source: DataInputView) -> T:
        try:
            return self.read_from(source)
        except Exception as error:
            raise self.deserialization_error(source.data, error) from error

    def create_codec(self) -> Codec[T]:
        try:
            return Codec(self._compile_write(), self._compile_read())
        except (SyntaxError, RecursionError) as error:
            if not is_nested_too_deep(error):
                raise
            # Python allows twenty nested loops in one function; a type nested deeper runs through the views.
            return super().create_codec()

    def _compile_write(self) -> Any:
        function = GeneratedFunction("write", "value")
        emitter = WriteEmitter(function)
        self.emit_write(emitter, "value")
        return function.compile([*emitter.lines, f"return {emitter.expression()}"])

    def _compile_read(self) -> Any:
        function = GeneratedFunction("read", "data, pos")
        emitter = ReadEmitter(function)
        result = self.emit_read(emitter)
        emitter.flush()
        last = emitter.lines[-1] if emitter.lines else ""
        if last.startswith("pos += "):
            return function.compile([*emitter.lines[:-1], f"return {result}, pos + {last.removeprefix('pos += ')}"])
        return function.compile([*emitter.lines, f"return {result}, pos"])


def emit_called_write(serializer: TypeSerializer[Any], emitter: WriteEmitter, value: str) -> None:
    """Emits a call that looks the codec up when it runs: for a serializer that contains itself."""
    emitter.append(f"{emitter.function.bind('serializer', serializer)}.codec.write({value})")


def emit_called_read(serializer: TypeSerializer[Any], emitter: ReadEmitter) -> str:
    """Emits a call that looks the codec up when it runs: for a serializer that contains itself."""
    result = emitter.function.fresh("v")
    emitter.line(f"{result}, pos = {emitter.function.bind('serializer', serializer)}.codec.read(data, pos)")
    return result
