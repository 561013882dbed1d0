"""The conversion of POJOs: the kind of object first, then field by field, and each subclass by its own name.

An old subclass is converted to the new serializer's subclass of the same Java name. One that the new serializer does
not know keeps its old form, and is written as an unregistered subclass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migration.conversion import Conversion, ConversionScope, Part, Read, compile_value, emit_part_value
from snapshots.data_views import DataInputView
from snapshots.errors import MalformedDataError
from snapshots.plans import AS_IS
from typeserializers.evolution.evolution_plans import PojoPlan
from typeserializers.kernel.code_generation import ReadEmitter
from typeserializers.kernel.stepping_over import stepping_over
from typeserializers.pojos.pojo_shape import PojoField
from typeserializers.pojos.pojo_tags import EXACT_CLASS, NULL, REGISTERED_SUBCLASS, UNREGISTERED_SUBCLASS
from typeserializers.pojos.pojos import PojoSerializer


class PojoConversion(Conversion):
    """Fields by the plan; removed ones are stepped over, added ones get their default."""

    plan: PojoPlan
    old: PojoSerializer[Any]
    new: PojoSerializer[Any]

    def _successors(self) -> dict[int, tuple[PojoField, Conversion]]:
        """By the index of an old field the new one that goes on from it."""
        return {
            origin.index: (
                part,
                self.scope.conversion(origin.plan, self.old.fields[origin.index].serializer, part.serializer),
            )
            for part, origin in zip(self.new.fields, self.plan.origins, strict=True)
            if origin is not None
        }

    def emit_value(self, reader: ReadEmitter) -> str:
        function = reader.function
        flags, result = reader.fixed("B"), function.fresh("v")
        exact = reader.child()
        arguments = self._emit_fields(exact)
        exact.line(f"{result} = {self.new.emit_construction(exact, arguments)}")
        reader.block(f"if {flags} == {EXACT_CLASS}:", exact)
        other = function.bind("read_other", OtherPojos(self.scope, self.plan, self.old, self.new).read)
        reader.line(f"else: {result}, pos = {other}(data, pos, {flags})")
        return result

    def _emit_fields(self, reader: ReadEmitter) -> list[str]:
        successors = self._successors()
        values: dict[str, str] = {}
        for index, part in enumerate(self.old.fields):
            successor = successors.get(index)
            is_null, item = reader.fixed("?"), reader.function.fresh("x")
            present = reader.child()
            if successor is None:
                stepping_over(part.serializer).emit_read(present)
                reader.block(f"if not {is_null}:", present)
                continue
            new, conversion = successor
            present.line(f"{item} = {emit_part_value(conversion, present)}")
            reader.line(f"if {is_null}: {item} = {self._null(reader, new)}")
            reader.block("else:", present)
            values[new.name] = item
        for part in self.new.fields:
            if part.name not in values:
                values[part.name] = f"{reader.function.bind('default', fresh_default(part))}()"
        return [values[part.name] for part in self.new.fields]

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        flags, position = data[position], position + 1
        if flags != EXACT_CLASS:
            return
        successors = self._successors()
        for index, part in enumerate(self.old.fields):
            successor, is_null = successors.get(index), data[position]
            position += 1
            if is_null:
                continue
            if successor is not None:
                yield f".{successor[0].name}", successor[1], position
            _, position = stepping_over(part.serializer).codec.read(data, position)

    def _null(self, reader: ReadEmitter, new: PojoField) -> str:
        if new.is_optional:
            return "None"
        return f"{reader.function.bind('refuse', _refuse_null)}({new.name!r})"


class OtherPojos:
    """What is not exactly the class: nulls and subclasses."""

    def __init__(
        self, scope: ConversionScope, plan: PojoPlan, old: PojoSerializer[Any], new: PojoSerializer[Any]
    ) -> None:
        self._scope = scope
        self.plan = plan
        self.old = old
        self.new = new
        self._reads: dict[str, Read] = {}

    def read(self, data: bytes, position: int, flags: int) -> tuple[Any, int]:
        """The new value of the object whose kind was read."""
        if flags == NULL:
            return None, position
        source = DataInputView(data, position)
        subclass: PojoSerializer[Any] | None = None
        if flags == REGISTERED_SUBCLASS:
            tag = source.read_unsigned_byte()
            if tag < len(self.old.registered_subclasses):
                subclass = self.old.registered_subclasses[tag]
        elif flags == UNREGISTERED_SUBCLASS:
            subclass = self.old.subclass_named(source.read_utf())
        if subclass is None:
            raise MalformedDataError(f"{self.old!r}: the kind of object before byte {position} is not known here")
        read = self._reads.get(subclass.shape.name)
        if read is None:
            read = self._reads[subclass.shape.name] = self._compiled(subclass)
        return read(data, source.position)

    def _compiled(self, subclass: PojoSerializer[Any]) -> Read:
        name = subclass.shape.name
        new = self.new.subclass_named(name) or self.new.keep_subclass(subclass)
        # One that the snapshot does not name was found by the old serializer in this program, as it is here.
        return compile_value(self._scope.conversion(self.plan.subclasses.get(name, AS_IS), subclass, new))


def fresh_default(part: PojoField) -> Any:
    """A function that makes the value of an added field, for each object anew."""

    def make() -> Any:
        value = part.make_default()
        return None if value is None else part.serializer.copy(value)

    return make


def _refuse_null(name: str) -> None:
    raise MalformedDataError(f".{name} is null in the state, but is not optional")
