"""Serializers of Java's arrays of objects, as lists.

    string array  := i32(count) string*                               null elements as the string encoding writes them
    generic array := i32(count) (bool(is present) element if present)*

The flag means *present*, the opposite of the flag in maps and sets. The snapshot of a generic array holds the name of
Java's component class. Arrays of different component classes are incompatible.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from snapshots.compatibility import CompatibilityIssue, FieldCompatibility
from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import misfit
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from typeserializers.containers.lists import checked_list
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter, indented
from typeserializers.kernel.compiled import CompiledTypeSerializer, check_count
from typeserializers.kernel.known_serializers import ARRAY, BASE, nested_snapshot
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.fixed_width import (
    BooleanSerializer,
    ByteSerializer,
    DoubleSerializer,
    FloatSerializer,
    IntSerializer,
    LongSerializer,
    ShortSerializer,
)
from typeserializers.scalars.strings import StringSerializer, read_text, write_text

E = TypeVar("E")

_FLAG: Final = BooleanSerializer()

_COMPONENT_CLASSES: Final[dict[type[TypeSerializer[Any]], str]] = {
    BooleanSerializer: "java.lang.Boolean",
    ByteSerializer: "java.lang.Byte",
    ShortSerializer: "java.lang.Short",
    IntSerializer: "java.lang.Integer",
    LongSerializer: "java.lang.Long",
    FloatSerializer: "java.lang.Float",
    DoubleSerializer: "java.lang.Double",
    StringSerializer: "java.lang.String",
}


class StringArraySerializer(CompiledTypeSerializer["list[str | None]"]):
    """Java's ``String[]`` as a list of str or None."""

    minimum_length = 4

    def create_instance(self) -> list[str | None]:
        return []

    def copy(self, value: list[str | None]) -> list[str | None]:
        return list(value)

    def write_to(self, value: list[str | None], out: DataOutputView) -> None:
        out.write_int(len(checked_list(value)))
        for text in value:
            out.write(write_text(text))

    def read_from(self, source: DataInputView) -> list[str | None]:
        count = source.read_int()
        texts, source.position = _read_texts(source.data, source.position, count)
        return texts

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        emitter.line(f"if {value}.__class__ is not list: {function.bind('checked_list', checked_list)}({value})")
        emitter.fixed("i", f"len({value})")
        emitter.append(f"b''.join(map({function.bind('write_text', write_text)}, {value}))")

    def emit_read(self, emitter: ReadEmitter) -> str:
        function = emitter.function
        count = emitter.fixed("i")
        result = function.fresh("v")
        emitter.line(f"{result}, pos = {function.bind('read_texts', _read_texts)}(data, pos, {count})")
        return result

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, (list, tuple)):
            yield misfit(path, value, "is not a list")
            return
        for index, text in enumerate(value):
            if text is not None and not isinstance(text, str):
                yield misfit(f"{path}[{index}]", text, "is not a str")

    def snapshot_configuration(self) -> StringArraySerializerSnapshot:
        return StringArraySerializerSnapshot()


def _read_texts(data: bytes, position: int, count: int) -> tuple[list[str | None], int]:
    check_count(count, len(data) - position, _FLAG)
    texts = []
    for _ in range(count):
        text, position = read_text(data, position)
        texts.append(text)
    return texts, position


def component_class_of(serializer: TypeSerializer[Any]) -> str:
    """Returns Java's class of the values of a serializer; ``java.lang.Object`` if it is unknown."""
    if isinstance(serializer, GenericArraySerializer):
        return f"[L{serializer.component_class};"
    return _COMPONENT_CLASSES.get(type(serializer), "java.lang.Object")


class GenericArraySerializer(CompiledTypeSerializer["list[E | None]"], Generic[E]):
    """An array of objects as a list whose elements may be None.

    ``component_class`` is the name of Java's component class, which Flink compares; it is known for scalars.
    """

    minimum_length = 4

    def __init__(self, component_serializer: TypeSerializer[E], component_class: str | None = None) -> None:
        self.component_serializer = component_serializer
        self.component_class = component_class or component_class_of(component_serializer)

    def configuration(self) -> Hashable:
        return self.component_serializer, self.component_class

    def create_instance(self) -> list[E | None]:
        return []

    def copy(self, value: list[E | None]) -> list[E | None]:
        if self.component_serializer.is_immutable_type:
            return list(value)
        copy = self.component_serializer.copy
        return [None if element is None else copy(element) for element in value]

    def duplicate(self) -> GenericArraySerializer[E]:
        component = self.component_serializer.duplicate()
        if component is self.component_serializer:
            return self
        return GenericArraySerializer(component, self.component_class)

    def write_to(self, value: list[E | None], out: DataOutputView) -> None:
        out.write_int(len(checked_list(value)))
        for element in value:
            out.write_boolean(element is not None)
            if element is not None:
                self.component_serializer.serialize(element, out)

    def read_from(self, source: DataInputView) -> list[E | None]:
        count = source.read_int()
        check_count(count, source.remaining, _FLAG)
        return [self.component_serializer.deserialize(source) if source.read_boolean() else None for _ in range(count)]

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        element, chunks = function.fresh("x"), function.fresh("chunks")
        present = emitter.child()
        present.fixed("?", "True")
        self.component_serializer.emit_write(present, element)
        present.line(f"{chunks}_append({present.expression()})")
        emitter.line(f"if {value}.__class__ is not list: {function.bind('checked_list', checked_list)}({value})")
        emitter.line(f"{chunks} = []; {chunks}_append = {chunks}.append")
        emitter.line(f"for {element} in {value}:")
        emitter.lines += indented([f"if {element} is None: {chunks}_append(b'\\x00')", "else:"])
        emitter.lines += indented(indented(present.lines))
        emitter.fixed("i", f"len({value})")
        emitter.append(f"b''.join({chunks})")

    def emit_read(self, emitter: ReadEmitter) -> str:
        function = emitter.function
        count = emitter.fixed("i")
        result = function.fresh("v")
        check = function.bind("check_count", check_count)
        emitter.line(f"{check}({count}, len(data) - pos, {function.bind('flag', _FLAG)})")
        emitter.line(f"{result} = []; {result}_append = {result}.append")
        body, present = emitter.child(), emitter.child()
        is_present = body.fixed("?")
        body.line(f"if not {is_present}: {result}_append(None)")
        expression = self.component_serializer.emit_read(present)
        present.line(f"{result}_append({expression})")
        body.block("else:", present)
        emitter.block(f"for _ in range({count}):", body)
        return result

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, (list, tuple)):
            yield misfit(path, value, "is not a list")
            return
        for index, element in enumerate(value):
            if element is not None:
                yield from self.component_serializer.problems(element, f"{path}[{index}]")

    def snapshot_configuration(self) -> GenericArraySerializerSnapshot[E]:
        return GenericArraySerializerSnapshot(self)

    def __repr__(self) -> str:
        return f"GenericArraySerializer({self.component_serializer!r}, {self.component_class!r})"


@register_snapshot(nested_snapshot(ARRAY, "StringArraySerializer"))
class StringArraySerializerSnapshot(SimpleTypeSerializerSnapshot["list[str | None]"]):
    serializer_class = StringArraySerializer


@register_snapshot(BASE + "GenericArraySerializerSnapshot")
class GenericArraySerializerSnapshot(
    CompositeTypeSerializerSnapshot["list[E | None]", GenericArraySerializer[Any]], Generic[E]
):
    """Outer configuration: the name of the component class."""

    outer_serializer_class = GenericArraySerializer

    component_class = ""

    def nested_serializers(self, outer: GenericArraySerializer[Any]) -> Sequence[TypeSerializer[Any]]:
        return (outer.component_serializer,)

    def create_outer_serializer(self, nested: Sequence[TypeSerializer[Any]]) -> GenericArraySerializer[Any]:
        return GenericArraySerializer(nested[0], self.component_class)

    def nested_path(self, index: int) -> str:
        return "[]"

    def take_outer_snapshot(self, serializer: GenericArraySerializer[Any]) -> None:
        self.component_class = serializer.component_class

    def write_outer_snapshot(self, out: DataOutputView) -> None:
        out.write_utf(self.component_class)

    def read_outer_snapshot(self, read_outer_version: int, source: DataInputView) -> None:
        self.component_class = source.read_utf()

    def resolve_outer_schema_compatibility(
        self, new_serializer: GenericArraySerializer[Any]
    ) -> Sequence[CompatibilityIssue]:
        if new_serializer.component_class == self.component_class:
            return ()
        return (
            CompatibilityIssue(
                "",
                FieldCompatibility.REJECT,
                "array-component-class",
                f"the array was one of {self.component_class} and would be one of {new_serializer.component_class}",
                f"Keep component_class={self.component_class!r}",
            ),
        )
