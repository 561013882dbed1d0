"""The base classes of serializers with generated code, and the bounds of counts.

A compiled serializer has its layout twice: against the views (`write_to`, `read_from`), which is the readable
specification, and as generated code (`emit_write`, `emit_read`), which runs. Both must agree on every byte and on every
rejected value; the contract suite checks it with generated values.

A `ReadingSerializer` only reads. It replaces a serializer whose values are used only during a migration.

A hostile count must cost neither time nor memory. Elements of at least one byte each are bounded by the bytes that
follow. Elements without bytes (a null value, a record without fields) are bounded by a constant per list; lists may be
nested, so the constant bounds what one byte can claim. Writers respect the same bound.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Final, NoReturn, TypeVar

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.errors import MalformedDataError
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter, is_nested_too_deep
from typeserializers.kernel.type_serializer import Codec, TypeSerializer

MAX_EMPTY_ELEMENTS: Final = 1 << 10


def check_count(count: int, remaining: int, *parts: TypeSerializer[Any]) -> None:
    """Raises `MalformedDataError` unless ``count`` elements of these parts fit in ``remaining`` bytes."""
    minimum = sum(part.minimum_length for part in parts)
    limit = remaining // minimum if minimum else MAX_EMPTY_ELEMENTS
    if not 0 <= count <= limit:
        raise MalformedDataError(
            f"invalid count {count}: the {remaining} bytes that follow have at most {limit} elements"
        )


def check_written_count(count: int, element: TypeSerializer[Any]) -> None:
    """Raises `ValueError` for more elements than `check_count` accepts."""
    if count > MAX_EMPTY_ELEMENTS and not element.minimum_length:
        raise ValueError(
            f"a reader would reject {count} elements without bytes as a damaged count: write at most "
            f"{MAX_EMPTY_ELEMENTS}, or store their number instead"
        )


def check_distinct(read: int, kept: int) -> None:
    """Raises `MalformedDataError` if two elements or keys that were read are equal in Python.

    Java distinguishes 0.0 from -0.0 and the decimals 1.0 and 1.00; in Python one would silently replace the other.
    """
    if read != kept:
        raise MalformedDataError(
            f"{read} elements or keys were read, but only {kept} of them are distinct in Python, so the others "
            f"would be lost"
        )


def emit_count_check(emitter: ReadEmitter, count: str, *parts: TypeSerializer[Any]) -> None:
    """Emits the check of a count: a comparison, and the call only if the comparison fails or is not possible."""
    minimum = sum(part.minimum_length for part in parts)
    function = emitter.function
    check = function.bind("check_count", check_count)
    names = ", ".join(function.bind("part", part) for part in parts)
    call = f"{check}({count}, len(data) - pos, {names})"
    emitter.line(f"if not 0 <= {count} * {minimum} <= len(data) - pos: {call}" if minimum else call)


T = TypeVar("T")


class CompiledTypeSerializer(TypeSerializer[T]):
    """A serializer with code generation and the view-based pair."""

    @abstractmethod
    def write_to(self, value: T, out: DataOutputView) -> None:
        """Appends the value; if it raises, `serialize` removes the partial value."""

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
            # Python allows twenty nested loops in one function; deeper types use the views.
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


class ReadingSerializer(CompiledTypeSerializer[Any]):
    """Base class of serializers that never write and are never persisted."""

    def write_to(self, value: Any, out: DataOutputView) -> NoReturn:
        raise NotImplementedError("a part of a migration only reads")

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        # The enclosing serializer is compiled for reading and writing, and then only reads.
        emitter.append(f"{emitter.function.bind('reject', self.write_to)}({value}, None)")

    def snapshot_configuration(self) -> NoReturn:
        raise NotImplementedError("a part of a migration is never persisted")
