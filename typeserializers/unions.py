"""The serializer of plain values of several types, told apart by their class: what ``int | str`` means.

    union := 01 value of the first type | 00 (value of the second of two, or the union of all but the first)

For two types these are the bytes of Flink's Either with the first type on the left; for more they are those of an
Either whose right side is again one.

On write the type is chosen by the class of the value: first the member of exactly this class, then the first member
of a base class of it. The class of a member is that of what its serializer makes from nothing, so the members must be
of different classes: of ``list[int] | list[str]`` no value could be told, and it is refused when it is built.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.errors import MalformedDataError
from snapshots.registry import register_snapshot
from typeserializers.code_generation import ReadEmitter, WriteEmitter, indented
from typeserializers.compiled import CompiledTypeSerializer
from typeserializers.type_serializer import TypeSerializer
from typeserializers.value_text import misfit, shown


class UnionSerializer(CompiledTypeSerializer[Any]):
    """Values of several types with one serializer each. Raises `ValueError` if two members share a class."""

    def __init__(self, member_serializers: Sequence[TypeSerializer[Any]]) -> None:
        self.member_serializers = tuple(member_serializers)
        if len(self.member_serializers) < 2:
            raise ValueError("a UnionSerializer needs at least two members")
        self.member_classes = tuple(base_class_of(member) for member in self.member_serializers)
        repeated = sorted(
            {member.__name__ for member in self.member_classes if self.member_classes.count(member) > 1}
        )
        if repeated:
            raise ValueError(
                f"two members of the union are of the class {', '.join(repeated)} and could not be told apart; "
                f"wrap them in records, or write an EitherSerializer with Left and Right"
            )
        last = len(self.member_serializers) - 1
        self._prefixes = [bytes(index) + (b"\x01" if index < last else b"") for index in range(last + 1)]

    @property
    def minimum_length(self) -> int:
        return min(
            len(prefix) + member.minimum_length
            for prefix, member in zip(self._prefixes, self.member_serializers, strict=True)
        )

    @property
    def length(self) -> int:
        lengths = {
            len(prefix) + member.length if member.length >= 0 else -1
            for prefix, member in zip(self._prefixes, self.member_serializers, strict=True)
        }
        return lengths.pop() if len(lengths) == 1 else -1

    @property
    def is_immutable_type(self) -> bool:
        return all(member.is_immutable_type for member in self.member_serializers)

    def configuration(self) -> Hashable:
        return self.member_serializers

    def create_instance(self) -> Any:
        return self.member_serializers[0].create_instance()

    def copy(self, value: Any) -> Any:
        return self.member_serializers[self.index_of(value)].copy(value)

    def duplicate(self) -> UnionSerializer:
        members = [member.duplicate() for member in self.member_serializers]
        unchanged = all(new is old for new, old in zip(members, self.member_serializers, strict=True))
        return self if unchanged else UnionSerializer(members)

    def index_of(self, value: Any) -> int:
        """The member whose class the value has; raises `TypeError` if it has none of them."""
        for index, member_class in enumerate(self.member_classes):
            if value.__class__ is member_class:
                return index
        for index, member_class in enumerate(self.member_classes):
            if isinstance(value, member_class):
                return index
        raise TypeError(f"{shown(value)} is none of {self._described()}")

    def write_to(self, value: Any, out: DataOutputView) -> None:
        index = self.index_of(value)
        out.write(self._prefixes[index])
        self.member_serializers[index].serialize(value, out)

    def _may_read_none(self, member: TypeSerializer[Any]) -> bool:
        """Whether the member could read a None that no member of the union means."""
        return member.accepts_none and type(None) not in self.member_classes

    def read_from(self, source: DataInputView) -> Any:
        index = 0
        while index < len(self.member_serializers) - 1 and not source.read_boolean():
            index += 1
        member = self.member_serializers[index]
        value = member.deserialize(source)
        if value is None and self._may_read_none(member):
            refuse_none(member)
        return value

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        index, encoded = function.fresh("i"), function.fresh("b")
        emitter.line(f"{index} = {function.bind('index_of', self.index_of)}({value})")
        for number, (prefix, member) in enumerate(zip(self._prefixes, self.member_serializers, strict=True)):
            branch = emitter.child()
            branch.append(repr(prefix))
            member.emit_write(branch, value)
            branch.line(f"{encoded} = {branch.expression()}")
            emitter.line(f"{'elif' if number else 'if'} {index} == {number}:")
            emitter.lines += indented(branch.lines)
        emitter.append(encoded)

    def emit_read(self, emitter: ReadEmitter) -> str:
        result = emitter.function.fresh("v")
        self._emit_read_from(emitter, 0, result)
        return result

    def _emit_read_from(self, emitter: ReadEmitter, index: int, result: str) -> None:
        member = self.member_serializers[index]
        if index == len(self.member_serializers) - 1:
            emitter.line(f"{result} = {member.emit_read(emitter)}")
            self._emit_none_check(emitter, member, result)
            return
        is_first = emitter.fixed("?")
        first, others = emitter.child(), emitter.child()
        expression = member.emit_read(first)
        first.line(f"{result} = {expression}")
        self._emit_none_check(first, member, result)
        emitter.block(f"if {is_first}:", first)
        self._emit_read_from(others, index + 1, result)
        emitter.block("else:", others)

    def _emit_none_check(self, emitter: ReadEmitter, member: TypeSerializer[Any], result: str) -> None:
        if self._may_read_none(member):
            refuse = emitter.function.bind("refuse_none", refuse_none)
            emitter.line(f"if {result} is None: {refuse}({emitter.function.bind('member', member)})")

    def problems(self, value: Any, path: str) -> Iterator[str]:
        try:
            index = self.index_of(value)
        except TypeError:
            yield misfit(path, value, f"is none of {self._described()}")
            return
        yield from self.member_serializers[index].problems(value, path)

    def _described(self) -> str:
        return ", ".join(member.__name__ for member in self.member_classes)

    def snapshot_configuration(self) -> UnionSerializerSnapshot:
        return UnionSerializerSnapshot(self)

    def __repr__(self) -> str:
        return f"UnionSerializer([{', '.join(map(repr, self.member_serializers))}])"


def refuse_none(member: TypeSerializer[Any]) -> None:
    """Raises `MalformedDataError` for a None where the union has none."""
    raise MalformedDataError(f"a null for {member!r} in a union without None")


def base_class_of(serializer: TypeSerializer[Any]) -> type:
    """The class of the values of a serializer; LinkedSet counts as the set that it is."""
    made = type(serializer.create_instance())
    return set if issubclass(made, set) else made


@register_snapshot("statebackend.UnionSerializerSnapshot")
class UnionSerializerSnapshot(CompositeTypeSerializerSnapshot[Any, UnionSerializer]):
    outer_serializer_class = UnionSerializer

    def nested_serializers(self, outer: UnionSerializer) -> Sequence[TypeSerializer[Any]]:
        return outer.member_serializers

    def create_outer_serializer(self, nested: Sequence[TypeSerializer[Any]]) -> UnionSerializer:
        return UnionSerializer(nested)

    def nested_path(self, index: int) -> str:
        return f"{{member {index}}}"
