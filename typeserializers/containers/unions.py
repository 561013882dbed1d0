"""The serializer of plain values of several types, chosen by class: the meaning of ``int | str``.

    union := 01 value of the first type | 00 (value of the second of two, or the union of all but the first)

For two types, the bytes equal those of Flink's Either with the first type on the left; for more types, those of an
Either whose right side is another Either.

On write, the class of the value selects the member: the member of exactly this class, else that of its nearest base
class. So the order of members affects only the bytes, and members must have different classes. For
``list[int] | list[str]`` the member of a value could not be found, so the constructor rejects it. The evolution rules
are in `typeserializers.evolution.union_evolution`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from typing import Any

from snapshots.compatibility import TypeSerializerSchemaCompatibility
from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import MalformedDataError, format_value, misfit
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot, rules_in_use
from typeserializers.containers.eithers import EitherSerializer
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter, indented
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.references import ReferenceSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VoidSerializer


class UnionSerializer(CompiledTypeSerializer[Any]):
    """Values of several types with one serializer each.

    Raises `ValueError` for fewer than two members, for two that share a class or a name, and for a member that has
    several types itself (a union, an optional, an Either).
    """

    def __init__(self, member_serializers: Sequence[TypeSerializer[Any]]) -> None:
        self._set_up(member_serializers)
        for member in self.member_serializers:
            if isinstance(member, (UnionSerializer, NullableSerializer, EitherSerializer)):
                raise ValueError(
                    f"the member {member.type_name} of the union is of several types itself; name each of them as a "
                    f"member, and wrap the union in a NullableSerializer if None is one of them"
                )
        # A reference is a record that does not exist yet: only its name is known.
        classes = [part.python_type for part in self.member_serializers if not isinstance(part, ReferenceSerializer)]
        repeated = sorted({member.__name__ for member in classes if classes.count(member) > 1})
        if repeated:
            raise ValueError(
                f"two members of the union are of the class {', '.join(repeated)} and cannot be distinguished; "
                f"wrap them in records, or write an EitherSerializer with Left and Right"
            )
        names = [member.type_name for member in self.member_serializers]
        alike = sorted({name for name in names if names.count(name) > 1})
        if alike:
            raise ValueError(
                f"two members of the union are named {', '.join(alike)}, and state knows them by their names; give one "
                f"of them another: Annotated[<the class>, <its serializer>(<the class>, name=...)]"
            )

    @classmethod
    def as_written(cls, member_serializers: Sequence[TypeSerializer[Any]]) -> UnionSerializer:
        """Creates the serializer of a stored union with any members: reading does not select members by class."""
        serializer = cls.__new__(cls)
        serializer._set_up(member_serializers)
        return serializer

    def _set_up(self, member_serializers: Sequence[TypeSerializer[Any]]) -> None:
        self.member_serializers = tuple(member_serializers)
        if len(self.member_serializers) < 2:
            raise ValueError("a UnionSerializer needs at least two members")
        last = len(self.member_serializers) - 1
        self.prefixes = tuple(bytes(index) + (b"\x01" if index < last else b"") for index in range(last + 1))

    @cached_property
    def _index_by_class(self) -> dict[type, int]:
        """The members by class; created on first use, because a member may be the enclosing record."""
        return {member.python_type: index for index, member in enumerate(self.member_serializers)}

    @property
    def type_name(self) -> str:
        return " | ".join(sorted(member.type_name for member in self.member_serializers))

    @property
    def minimum_length(self) -> int:
        return min(
            len(prefix) + member.minimum_length
            for prefix, member in zip(self.prefixes, self.member_serializers, strict=True)
        )

    @property
    def length(self) -> int:
        lengths = [member.length for member in self.member_serializers]
        if -1 in lengths:
            return -1
        whole = {len(prefix) + length for prefix, length in zip(self.prefixes, lengths, strict=True)}
        return whole.pop() if len(whole) == 1 else -1

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
        # A stored union may have members that this program does not have.
        return self if unchanged else UnionSerializer.as_written(members)

    def index_of(self, value: Any) -> int:
        """Returns the index of the member for the class of the value; raises `TypeError` if there is none."""
        index_by_class = self._index_by_class
        index = index_by_class.get(value.__class__)
        if index is not None:
            return index
        for base in value.__class__.__mro__:
            if base in index_by_class:
                return index_by_class[base]
        if value.__class__.__module__ == "numpy" and type(value.tolist()) in index_by_class:
            return index_by_class[type(value.tolist())]
        raise TypeError(f"{format_value(value)} is not one of {self._described()}")

    def write_to(self, value: Any, out: DataOutputView) -> None:
        index = self.index_of(value)
        out.write(self.prefixes[index])
        self.member_serializers[index].serialize(value, out)

    def rejects_none(self, member: TypeSerializer[Any]) -> bool:
        """Whether the member could read None although the union does not accept it."""
        return member.accepts_none and not any(isinstance(part, VoidSerializer) for part in self.member_serializers)

    def read_from(self, source: DataInputView) -> Any:
        index = 0
        while index < len(self.member_serializers) - 1 and not source.read_boolean():
            index += 1
        member = self.member_serializers[index]
        value = member.deserialize(source)
        if value is None and self.rejects_none(member):
            reject_none(member)
        return value

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        index, encoded = function.fresh("i"), function.fresh("b")
        emitter.line(f"{index} = {function.bind('index_of', self.index_of)}({value})")
        for number, (prefix, member) in enumerate(zip(self.prefixes, self.member_serializers, strict=True)):
            branch = emitter.child()
            branch.append(repr(prefix))
            member.emit_write(branch, value)
            branch.line(f"{encoded} = {branch.expression()}")
            emitter.line(f"{'elif' if number else 'if'} {index} == {number}:")
            emitter.lines += indented(branch.lines)
        emitter.append(encoded)

    def emit_read(self, emitter: ReadEmitter) -> str:
        result = emitter.function.fresh("v")

        def emit_member(branch: ReadEmitter, index: int) -> None:
            member = self.member_serializers[index]
            branch.line(f"{result} = {member.emit_read(branch)}")
            if self.rejects_none(member):
                reject = branch.function.bind("reject_none", reject_none)
                branch.line(f"if {result} is None: {reject}({branch.function.bind('member', member)})")

        self.emit_branches(emitter, emit_member)
        return result

    def emit_branches(self, emitter: ReadEmitter, emit_member: Callable[[ReadEmitter, int], None]) -> None:
        """Emits the read of the tag and one branch per member."""
        self._emit_branches_from(emitter, 0, emit_member)

    def _emit_branches_from(
        self, emitter: ReadEmitter, index: int, emit_member: Callable[[ReadEmitter, int], None]
    ) -> None:
        if index == len(self.member_serializers) - 1:
            emit_member(emitter, index)
            return
        is_this = emitter.fixed("?")
        this, others = emitter.child(), emitter.child()
        emit_member(this, index)
        emitter.block(f"if {is_this}:", this)
        self._emit_branches_from(others, index + 1, emit_member)
        emitter.block("else:", others)

    def problems(self, value: Any, path: str) -> Iterator[str]:
        try:
            index = self.index_of(value)
        except TypeError:
            yield misfit(path, value, f"is not one of {self._described()}")
            return
        yield from self.member_serializers[index].problems(value, path)

    def _described(self) -> str:
        return ", ".join(member.type_name for member in self.member_serializers)

    def snapshot_configuration(self) -> UnionSerializerSnapshot:
        return UnionSerializerSnapshot(self)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_index_by_class", None)
        return state

    def __repr__(self) -> str:
        return f"UnionSerializer([{', '.join(map(repr, self.member_serializers))}])"


def reject_none(member: TypeSerializer[Any]) -> None:
    """Raises `MalformedDataError` for a null in a union that does not accept None."""
    raise MalformedDataError(f"a null for {member!r} in a union without None")


@register_snapshot("statebackend.UnionSerializerSnapshot")
class UnionSerializerSnapshot(CompositeTypeSerializerSnapshot[Any, UnionSerializer]):
    """The members in the order of their tags; they are matched by type."""

    outer_serializer_class = UnionSerializer

    def nested_serializers(self, outer: UnionSerializer) -> Sequence[TypeSerializer[Any]]:
        return outer.member_serializers

    def create_outer_serializer(self, nested: Sequence[TypeSerializer[Any]]) -> UnionSerializer:
        return UnionSerializer.as_written(nested)

    def nested_path(self, index: int) -> str:
        return f"{{member {index}}}"

    def resolve_with(
        self,
        new_serializer: TypeSerializer[Any],
        resolve_nested: Callable[
            [TypeSerializerSnapshot[Any], TypeSerializer[Any]], TypeSerializerSchemaCompatibility[Any]
        ],
    ) -> TypeSerializerSchemaCompatibility[Any]:
        """Resolves by the rule for unions, at the top level and in a record."""
        return rules_in_use().resolve(self, new_serializer)
