"""The serializer of lists.

    list := i32(size) element*

A list of plain numbers is written and read by a single ``struct`` call.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import misfit
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter, indented
from typeserializers.kernel.compiled import CompiledTypeSerializer, check_count, check_written_count, emit_count_check
from typeserializers.kernel.known_serializers import BASE
from typeserializers.kernel.type_serializer import TypeSerializer

E = TypeVar("E")


class ListSerializer(CompiledTypeSerializer["list[E]"], Generic[E]):
    """A list with one serializer for all elements. A tuple is accepted and is read back as a list."""

    def __init__(self, element_serializer: TypeSerializer[E]) -> None:
        self.element_serializer = element_serializer

    def configuration(self) -> Hashable:
        return self.element_serializer

    @property
    def type_name(self) -> str:
        return f"list[{self.element_serializer.type_name}]"

    def create_instance(self) -> list[E]:
        return []

    def copy(self, value: list[E]) -> list[E]:
        if self.element_serializer.is_immutable_type:
            return list(value)
        copy = self.element_serializer.copy
        return [copy(element) for element in value]

    def duplicate(self) -> ListSerializer[E]:
        element = self.element_serializer.duplicate()
        return self if element is self.element_serializer else ListSerializer(element)

    def write_to(self, value: list[E], out: DataOutputView) -> None:
        check_written_count(len(checked_list(value)), self.element_serializer)
        out.write_int(len(value))
        for element in value:
            self.element_serializer.serialize(element, out)

    def read_from(self, source: DataInputView) -> list[E]:
        count = source.read_int()
        check_count(count, source.remaining, self.element_serializer)
        return [self.element_serializer.deserialize(source) for _ in range(count)]

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        check = function.bind("checked_list", checked_list)
        emitter.line(f"if {value}.__class__ is not list: {check}({value})")
        if not self.element_serializer.minimum_length:
            check_count = function.bind("check_written_count", check_written_count)
            emitter.line(f"{check_count}(len({value}), {function.bind('element', self.element_serializer)})")
        element = function.fresh("x")
        inner = emitter.child()
        self.element_serializer.emit_write(inner, element)
        if inner.fixed_format() is not None and inner.fixed_arguments() == [element]:
            pack = function.bind("pack", struct.pack)
            emitter.append(f"{pack}(f'>i{{len({value})}}{inner.fixed_format()}', len({value}), *{value})")
            return
        emitter.fixed("i", f"len({value})")
        if not inner.lines:
            emitter.append(f"b''.join([{inner.expression()} for {element} in {value}])")
            return
        chunks = function.fresh("chunks")
        inner.line(f"{chunks}_append({inner.expression()})")
        emitter.line(f"{chunks} = []; {chunks}_append = {chunks}.append")
        emitter.line(f"for {element} in {value}:")
        emitter.lines += indented(inner.lines)
        emitter.append(f"b''.join({chunks})")

    def emit_read(self, emitter: ReadEmitter) -> str:
        function = emitter.function
        count = emitter.fixed("i")
        result = function.fresh("v")
        emit_count_check(emitter, count, self.element_serializer)
        inner = emitter.child()
        expression = self.element_serializer.emit_read(inner)
        characters = inner.pending_format()
        if characters is not None and inner.pending_variables() == [expression]:
            unpack = function.bind("unpack_from", struct.unpack_from)
            emitter.line(f"{result} = list({unpack}(f'>{{{count}}}{characters}', data, pos))")
            emitter.line(f"pos += {count} * {struct.calcsize('>' + characters)}")
            return result
        emitter.line(f"{result} = []; {result}_append = {result}.append")
        inner.line(f"{result}_append({expression})")
        emitter.block(f"for _ in range({count}):", inner)
        return result

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, (list, tuple)):
            yield misfit(path, value, "is not a list")
            return
        for index, element in enumerate(value):
            yield from self.element_serializer.problems(element, f"{path}[{index}]")

    def snapshot_configuration(self) -> ListSerializerSnapshot[E]:
        return ListSerializerSnapshot(self)

    def __repr__(self) -> str:
        return f"ListSerializer({self.element_serializer!r})"


def checked_list(value: Any) -> Sequence[Any]:
    """Accepts a list or a tuple and rejects other iterables."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"a list is needed, not {type(value).__name__}")
    return value


@register_snapshot(BASE + "ListSerializerSnapshot")
class ListSerializerSnapshot(CompositeTypeSerializerSnapshot["list[E]", ListSerializer[Any]], Generic[E]):
    outer_serializer_class: ClassVar[type[ListSerializer[Any]]] = ListSerializer

    def nested_serializers(self, outer: ListSerializer[Any]) -> Sequence[TypeSerializer[Any]]:
        return (outer.element_serializer,)

    def create_outer_serializer(self, nested: Sequence[TypeSerializer[Any]]) -> ListSerializer[Any]:
        return ListSerializer(nested[0])

    def nested_path(self, index: int) -> str:
        return "[]"


class ArrayListSerializer(ListSerializer[E], Generic[E]):
    """A list under the name of Flink's list state; the same values and the same bytes."""

    def duplicate(self) -> ArrayListSerializer[E]:
        element = self.element_serializer.duplicate()
        return self if element is self.element_serializer else ArrayListSerializer(element)

    def snapshot_configuration(self) -> ArrayListSerializerSnapshot[E]:
        return ArrayListSerializerSnapshot(self)

    def __repr__(self) -> str:
        return f"ArrayListSerializer({self.element_serializer!r})"


@register_snapshot("org.apache.flink.runtime.state.ArrayListSerializerSnapshot")
class ArrayListSerializerSnapshot(ListSerializerSnapshot[E], Generic[E]):
    outer_serializer_class = ArrayListSerializer

    def create_outer_serializer(self, nested: Sequence[TypeSerializer[Any]]) -> ArrayListSerializer[Any]:
        return ArrayListSerializer(nested[0])
