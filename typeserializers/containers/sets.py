"""Serializers of sets.

    set := i32(size) (bool(element is null) element unless null)*

A Python set of strings iterates in another order in every process, but two runs over the same input must write the same
bytes. New elements are therefore written in the order of their own bytes. A set that was read keeps the order of its
remaining elements (`LinkedSet`), so that an unchanged value is written back byte for byte. A frozenset is always
written in the order of the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, Generic, TypeVar

from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import format_value, misfit
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter, indented
from typeserializers.kernel.compiled import CompiledTypeSerializer, check_count, check_distinct
from typeserializers.kernel.known_serializers import BASE
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.fixed_width import BooleanSerializer

E = TypeVar("E")
S = TypeVar("S", bound="AbstractSet[Any]")

_FLAG: Final = BooleanSerializer()


class LinkedSet(set[E]):
    """A set that remembers the order of the elements it was created from."""

    __slots__ = ("_first_order",)

    def __init__(self, elements: Iterable[E] = ()) -> None:
        ordered = list(elements)
        super().__init__(ordered)
        self._first_order = ordered if len(ordered) == len(self) else list(dict.fromkeys(ordered))

    def remembered(self) -> list[E]:
        """The original elements that are still in the set, in order."""
        # Set operators create their result without __init__, so it has no order.
        first = getattr(self, "_first_order", [])
        return first if self.issuperset(first) else [element for element in first if element in self]

    def __reduce__(self) -> tuple[Any, ...]:
        remembered = self.remembered()
        return type(self), (remembered + list(self.difference(remembered)),)


def writing_order(value: Any) -> tuple[tuple[Iterable[Any], bool], ...]:
    """The elements in one or two parts, each with whether it is to be sorted by its bytes."""
    if isinstance(value, LinkedSet):
        remembered = value.remembered()
        if len(remembered) == len(value):
            return ((remembered, False),)
        return ((remembered, False), (value.difference(remembered), True))
    if not isinstance(value, (set, frozenset)):
        raise TypeError(f"a set is needed, not {type(value).__name__}")
    return ((value, True),)


class AnySetSerializer(CompiledTypeSerializer[S]):
    """Base class of the two set serializers."""

    minimum_length = 4

    def __init__(self, element_serializer: TypeSerializer[Any]) -> None:
        self.element_serializer = element_serializer

    def order(self, value: Any) -> tuple[tuple[Iterable[Any], bool], ...]:
        """The elements in one or two parts, each with whether it is to be sorted by its bytes."""
        return writing_order(value)

    def collected(self, elements: list[Any]) -> S:
        """The set of the elements that were read."""
        raise NotImplementedError

    def configuration(self) -> Hashable:
        return self.element_serializer

    @property
    def type_name(self) -> str:
        return f"{self.python_type.__name__}[{self.element_serializer.type_name}]"

    def create_instance(self) -> S:
        return self.collected([])

    def _copied(self, elements: Iterable[Any]) -> list[Any]:
        copy = self.element_serializer.copy
        return [None if element is None else copy(element) for element in elements]

    def duplicate(self) -> Any:
        element = self.element_serializer.duplicate()
        return self if element is self.element_serializer else type(self)(element)

    def write_to(self, value: S, out: DataOutputView) -> None:
        parts = self.order(value)
        out.write_int(len(value))
        for part, is_sorted in parts:
            encoded = [self._encoded(element) for element in part]
            for chunk in sorted(encoded) if is_sorted else encoded:
                out.write(chunk)

    def _encoded(self, element: Any) -> bytes:
        out = DataOutputView()
        out.write_boolean(element is None)
        if element is not None:
            self.element_serializer.serialize(element, out)
        return out.to_bytes()

    def read_from(self, source: DataInputView) -> S:
        count = source.read_int()
        check_count(count, source.remaining, _FLAG)
        return self.collected(
            [None if source.read_boolean() else self.element_serializer.deserialize(source) for _ in range(count)]
        )

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        element, chunks, all_chunks = function.fresh("x"), function.fresh("chunks"), function.fresh("all")
        part, is_sorted = function.fresh("part"), function.fresh("sorted")
        present = emitter.child()
        present.fixed("?", "False")
        self.element_serializer.emit_write(present, element)
        present.line(f"{chunks}_append({present.expression()})")
        loop = [f"if {element} is None: {chunks}_append(b'\\x01')", "else:", *indented(present.lines)]
        emitter.line(f"{all_chunks} = []")
        emitter.line(f"for {part}, {is_sorted} in {function.bind('order', self.order)}({value}):")
        emitter.lines += indented(
            [
                f"{chunks} = []; {chunks}_append = {chunks}.append",
                f"for {element} in {part}:",
                *indented(loop),
                f"if {is_sorted}: {chunks}.sort()",
                f"{all_chunks} += {chunks}",
            ]
        )
        emitter.fixed("i", f"len({value})")
        emitter.append(f"b''.join({all_chunks})")

    def emit_read(self, emitter: ReadEmitter) -> str:
        function = emitter.function
        count = emitter.fixed("i")
        elements, result = function.fresh("elements"), function.fresh("v")
        check = function.bind("check_count", check_count)
        emitter.line(f"{check}({count}, len(data) - pos, {function.bind('flag', _FLAG)})")
        one_by_one, body, present = emitter.child(), emitter.child(), emitter.child()
        is_null = body.fixed("?")
        body.line(f"if {is_null}: {elements}_append(None)")
        expression = self.element_serializer.emit_read(present)
        characters, variables = present.pending_format(), present.pending_variables()
        present.line(f"{elements}_append({expression})")
        body.block("else:", present)
        one_by_one.line(f"{elements} = []; {elements}_append = {elements}.append")
        one_by_one.block(f"for _ in range({count}):", body)
        if characters is not None and variables == [expression]:
            # Without nulls the elements have equal distances, and one struct call reads them all.
            width, chunk = 1 + struct.calcsize(">" + characters), function.fresh("chunk")
            unpack = function.bind("iter_unpack", struct.Struct(f">x{characters}").iter_unpack)
            emitter.line(f"{chunk} = data[pos:pos + {count} * {width}]")
            emitter.line(f"if len({chunk}) == {count} * {width} and not any({chunk}[::{width}]):")
            emitter.line(f"    {elements} = [{expression} for {expression}, in {unpack}({chunk})]")
            emitter.line(f"    pos += {count} * {width}")
            emitter.block("else:", one_by_one)
        else:
            emitter.lines += one_by_one.lines
        emitter.line(f"{result} = {function.bind('collected', self.collected)}({elements})")
        return result

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, (set, frozenset)):
            yield misfit(path, value, "is not a set")
            return
        for element in value:
            if element is not None:
                yield from self.element_serializer.problems(element, f"{path}{{{format_value(element)}}}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.element_serializer!r})"


class SetSerializer(AnySetSerializer["set[E]"], Generic[E]):
    """A set, returned as a `LinkedSet`; a frozenset is accepted."""

    @property
    def python_type(self) -> type:
        return set

    def copy(self, value: set[E]) -> set[E]:
        if not isinstance(value, LinkedSet):
            return set(self._copied(value))
        remembered = value.remembered()
        copied: LinkedSet[E] = LinkedSet(self._copied(remembered))
        copied.update(self._copied(value.difference(remembered)))
        return copied

    def collected(self, elements: list[Any]) -> set[E]:
        collected: LinkedSet[E] = LinkedSet(elements)
        check_distinct(len(elements), len(collected))
        return collected

    def snapshot_configuration(self) -> SetSerializerSnapshot[E]:
        return SetSerializerSnapshot(self)


class FrozenSetSerializer(AnySetSerializer["frozenset[E]"], Generic[E]):
    """A frozenset, in the layout of a set; it can be an element of a set or the key of a map."""

    def copy(self, value: frozenset[E]) -> frozenset[E]:
        return value if self.is_immutable_type else frozenset(self._copied(value))

    @property
    def is_immutable_type(self) -> bool:
        return self.element_serializer.is_immutable_type

    @property
    def equal_values_have_equal_bytes(self) -> bool:
        return self.element_serializer.equal_values_have_equal_bytes

    def order(self, value: Any) -> tuple[tuple[Iterable[Any], bool], ...]:
        if not isinstance(value, (set, frozenset)):
            raise TypeError(f"a frozenset is needed, not {type(value).__name__}")
        return ((value, True),)

    def collected(self, elements: list[Any]) -> frozenset[E]:
        collected = frozenset(elements)
        check_distinct(len(elements), len(collected))
        return collected

    def snapshot_configuration(self) -> FrozenSetSerializerSnapshot[E]:
        return FrozenSetSerializerSnapshot(self)


@register_snapshot(BASE + "SetSerializerSnapshot")
class SetSerializerSnapshot(CompositeTypeSerializerSnapshot["set[E]", SetSerializer[Any]], Generic[E]):
    outer_serializer_class = SetSerializer

    def nested_serializers(self, outer: SetSerializer[Any]) -> Sequence[TypeSerializer[Any]]:
        return (outer.element_serializer,)

    def create_outer_serializer(self, nested: Sequence[TypeSerializer[Any]]) -> SetSerializer[Any]:
        return SetSerializer(nested[0])

    def nested_path(self, index: int) -> str:
        return "{element}"

    def holds_distinct_values(self, index: int) -> bool:
        return True


@register_snapshot("statebackend.FrozenSetSerializerSnapshot")
class FrozenSetSerializerSnapshot(
    CompositeTypeSerializerSnapshot["frozenset[E]", FrozenSetSerializer[Any]], Generic[E]
):
    outer_serializer_class = FrozenSetSerializer

    def nested_serializers(self, outer: FrozenSetSerializer[Any]) -> Sequence[TypeSerializer[Any]]:
        return (outer.element_serializer,)

    def create_outer_serializer(self, nested: Sequence[TypeSerializer[Any]]) -> FrozenSetSerializer[Any]:
        return FrozenSetSerializer(nested[0])

    def nested_path(self, index: int) -> str:
        return "{element}"

    def holds_distinct_values(self, index: int) -> bool:
        return True
