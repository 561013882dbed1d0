"""The serializer of Flink's Either: a value of one of two types, with its side.

    either := 01 left value | 00 right value

`typeserializers.containers.unions` writes the same bytes for plain Python values of two types.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from attrs import frozen

from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import misfit
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter, indented
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.known_serializers import RUNTIME
from typeserializers.kernel.type_serializer import TypeSerializer

L = TypeVar("L")
R = TypeVar("R")


@frozen
class Left(Generic[L]):
    """A value of the left type."""

    value: L


@frozen
class Right(Generic[R]):
    """A value of the right type."""

    value: R


class EitherSerializer(CompiledTypeSerializer["Left[L] | Right[R]"], Generic[L, R]):
    """A `Left` or a `Right`."""

    def __init__(self, left_serializer: TypeSerializer[L], right_serializer: TypeSerializer[R]) -> None:
        self.left_serializer = left_serializer
        self.right_serializer = right_serializer

    @property
    def length(self) -> int:
        left, right = self.left_serializer.length, self.right_serializer.length
        return 1 + left if left == right and left >= 0 else -1

    @property
    def minimum_length(self) -> int:
        return 1 + min(self.left_serializer.minimum_length, self.right_serializer.minimum_length)

    @property
    def is_immutable_type(self) -> bool:
        return self.left_serializer.is_immutable_type and self.right_serializer.is_immutable_type

    @property
    def equal_values_have_equal_bytes(self) -> bool:
        return (
            self.left_serializer.equal_values_have_equal_bytes and self.right_serializer.equal_values_have_equal_bytes
        )

    def configuration(self) -> Hashable:
        return self.left_serializer, self.right_serializer

    @property
    def type_name(self) -> str:
        return f"Left[{self.left_serializer.type_name}] | Right[{self.right_serializer.type_name}]"

    def create_instance(self) -> Left[L] | Right[R]:
        return Right(self.right_serializer.create_instance())

    def copy(self, value: Left[L] | Right[R]) -> Left[L] | Right[R]:
        if isinstance(value, Left):
            return Left(self.left_serializer.copy(value.value))
        return Right(self.right_serializer.copy(value.value))

    def duplicate(self) -> EitherSerializer[L, R]:
        left, right = self.left_serializer.duplicate(), self.right_serializer.duplicate()
        unchanged = left is self.left_serializer and right is self.right_serializer
        return self if unchanged else EitherSerializer(left, right)

    def write_to(self, value: Left[L] | Right[R], out: DataOutputView) -> None:
        if value.__class__ not in (Left, Right):
            reject_side(value)
        out.write_boolean(isinstance(value, Left))
        if isinstance(value, Left):
            self.left_serializer.serialize(value.value, out)
        else:
            self.right_serializer.serialize(value.value, out)

    def read_from(self, source: DataInputView) -> Left[L] | Right[R]:
        if source.read_boolean():
            return Left(self.left_serializer.deserialize(source))
        return Right(self.right_serializer.deserialize(source))

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        encoded = function.fresh("b")
        keyword = "if"
        sides = ((Left, "True", self.left_serializer), (Right, "False", self.right_serializer))
        for side, flag, serializer in sides:
            branch = emitter.child()
            branch.fixed("?", flag)
            serializer.emit_write(branch, f"{value}.value")
            branch.line(f"{encoded} = {branch.expression()}")
            emitter.line(f"{keyword} {value}.__class__ is {function.bind('side', side)}:")
            emitter.lines += indented(branch.lines)
            keyword = "elif"
        emitter.line(f"else: {function.bind('reject_side', reject_side)}({value})")
        emitter.append(encoded)

    def emit_read(self, emitter: ReadEmitter) -> str:
        function = emitter.function
        is_left = emitter.fixed("?")
        result = function.fresh("v")
        for header, side, serializer in (
            (f"if {is_left}:", Left, self.left_serializer),
            ("else:", Right, self.right_serializer),
        ):
            branch = emitter.child()
            expression = serializer.emit_read(branch)
            branch.line(f"{result} = {function.bind('side', side)}({expression})")
            emitter.block(header, branch)
        return result

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if value.__class__ is Left:
            yield from self.left_serializer.problems(value.value, f"{path}.left")
        elif value.__class__ is Right:
            yield from self.right_serializer.problems(value.value, f"{path}.right")
        else:
            yield misfit(path, value, "is neither a Left nor a Right")

    def snapshot_configuration(self) -> JavaEitherSerializerSnapshot[L, R]:
        return JavaEitherSerializerSnapshot(self)

    def __repr__(self) -> str:
        return f"EitherSerializer({self.left_serializer!r}, {self.right_serializer!r})"


def reject_side(value: Any) -> None:
    """Raises `TypeError` for a value that is neither `Left` nor `Right`."""
    raise TypeError(f"a Left or a Right is needed, not {type(value).__name__}")


@register_snapshot(RUNTIME + "JavaEitherSerializerSnapshot")
class JavaEitherSerializerSnapshot(
    CompositeTypeSerializerSnapshot["Left[L] | Right[R]", EitherSerializer[Any, Any]], Generic[L, R]
):
    outer_serializer_class = EitherSerializer

    def nested_serializers(self, outer: EitherSerializer[Any, Any]) -> Sequence[TypeSerializer[Any]]:
        return outer.left_serializer, outer.right_serializer

    def create_outer_serializer(self, nested: Sequence[TypeSerializer[Any]]) -> EitherSerializer[Any, Any]:
        return EitherSerializer(nested[0], nested[1])

    def nested_path(self, index: int) -> str:
        return (".left", ".right")[index]
