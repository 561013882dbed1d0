"""The serializer of enums.

    constant := i32(ordinal)      the index of the constant in the *snapshot's* list of names, not in the class

The snapshot holds the name of the enum and the names of its constants in wire order:

    content := UTF(enum name) i32(constants) UTF(constant name)*

The evolution rules are in `typeserializers.evolution.simple_evolution`.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final, TypeVar

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import SnapshotFormatError, UnresolvableSerializerError, cut, misfit, printable
from snapshots.type_serializer_snapshot import RuledTypeSerializerSnapshot
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.known_serializers import BASE, known_of, nested_snapshot
from typeserializers.kernel.serializer_inference import checked_former_names

C = TypeVar("C", bound=enum.Enum)

FORMER_NAMES_ATTRIBUTE: Final = "__former_names__"
MAX_CONSTANTS: Final = 1 << 14
"""The maximum number of constants of an enum; Java's limit is a few thousand."""

_STAND_IN_ATTRIBUTE: Final = "__stands_in_for__"


class EnumSerializer(CompiledTypeSerializer[C]):
    """A constant of an ``enum.Enum``.

    Args:
        enum_class: The class of the values.
        constants: The names of the constants in the order of their ordinals; by default the order of the class. A
            restored or reconfigured serializer has the order of the snapshot.
        name: The stable name of the enum; by default the name of the class. To share state with Flink, pass the name of
            the Java class.
        former_names: Earlier names of the enum; by default ``__former_names__`` of the class.

    Raises:
        ValueError: There are no constants, or the class does not have them.
    """

    length = 4
    is_immutable_type = True
    equal_values_have_equal_bytes = True

    def __init__(
        self,
        enum_class: type[C],
        constants: Sequence[str] | None = None,
        *,
        name: str | None = None,
        former_names: Sequence[str] = (),
    ) -> None:
        self.enum_class = enum_class
        self.name = name or enum_class.__qualname__.rpartition("<locals>.")[2]
        declared_names = former_names or enum_class.__dict__.get(FORMER_NAMES_ATTRIBUTE, ())
        self.former_names = checked_former_names(declared_names, self.name)
        declared = [constant.name for constant in enum_class]
        self.constants = tuple(declared if constants is None else constants)
        if not self.constants:
            raise ValueError(f"the enum {self.name} has no constants, so it has no values to write")
        if len(self.constants) > MAX_CONSTANTS:
            raise ValueError(f"the enum {self.name} has {len(self.constants)} constants, the limit is {MAX_CONSTANTS}")
        known = enum_class.__members__
        unknown = [constant for constant in self.constants if constant not in known]
        if unknown or len({known[constant].name for constant in self.constants}) != len(self.constants):
            raise ValueError(
                f"constants of {self.name} must be distinct names of {', '.join(declared)}, not "
                f"{', '.join(self.constants)}"
            )
        self._constant_of = {ordinal: known[item] for ordinal, item in enumerate(self.constants)}
        self._ordinal_of = {constant.name: ordinal for ordinal, constant in self._constant_of.items()}

    def configuration(self) -> Hashable:
        return self.enum_class, self.name, self.constants

    @property
    def python_type(self) -> type[C]:
        return self.enum_class

    @property
    def type_name(self) -> str:
        return self.name

    @property
    def former_type_names(self) -> Sequence[str]:
        return self.former_names

    def create_instance(self) -> C:
        return self._constant_of[0]

    def ordinal_of(self, value: Any) -> int:
        """Returns the ordinal on the wire; raises `TypeError` or `ValueError` for values that are not constants."""
        if value.__class__ is self.enum_class:
            ordinal = self._ordinal_of.get(value._name_)
            if ordinal is None:
                raise ValueError(f"is not one of the constants that can be written here: {', '.join(self.constants)}")
            return ordinal
        stands_in_for = getattr(type(value), _STAND_IN_ATTRIBUTE, None)
        if stands_in_for is not None and stands_in_for in (self.name, *self.former_names):
            constant = self.enum_class.__members__.get(value.name)
            if constant is None or constant.name not in self._ordinal_of:
                raise ValueError(f"was a constant of {stands_in_for} that {self.name} does not have")
            return self._ordinal_of[constant.name]
        raise TypeError(f"is not a constant of {self.name}")

    def write_to(self, value: C, out: DataOutputView) -> None:
        out.write_int(self.ordinal_of(value))

    def read_from(self, source: DataInputView) -> C:
        return self._constant_of[source.read_int()]

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        ordinal = function.fresh("ordinal")
        enum_class = function.bind("enum_class", self.enum_class)
        ordinals = function.bind("ordinals", self._ordinal_of)
        # Names are looked up, not constants, because hashing a constant is a Python call.
        emitter.line(f"{ordinal} = {ordinals}.get({value}._name_) if {value}.__class__ is {enum_class} else None")
        emitter.line(f"if {ordinal} is None: {ordinal} = {function.bind('ordinal_of', self.ordinal_of)}({value})")
        emitter.fixed("i", ordinal)

    def emit_read(self, emitter: ReadEmitter) -> str:
        return f"{emitter.function.bind('constant_of', self._constant_of)}[{emitter.fixed('i')}]"

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        enum_class, ordinals = function.bind("enum_class", self.enum_class), function.bind("ordinals", self._ordinal_of)
        return f"type({first}) is {enum_class} and {again}._name_ in {ordinals}"

    def problems(self, value: Any, path: str) -> Iterator[str]:
        try:
            self.ordinal_of(value)
        except (TypeError, ValueError) as error:
            yield misfit(path, value, error)

    def snapshot_configuration(self) -> EnumSerializerSnapshot[C]:
        return EnumSerializerSnapshot(self)

    def __repr__(self) -> str:
        return f"EnumSerializer({self.name})"


class _StandIn(enum.Enum):
    """Base class of enums whose class is missing. Their names may have any characters."""

    def __repr__(self) -> str:
        return printable(super().__repr__())

    def __str__(self) -> str:
        return printable(super().__str__())


def _has_all_apart(enum_class: type[enum.Enum], names: Sequence[str]) -> bool:
    """Whether the enum has a distinct constant for each name."""
    members = enum_class.__members__
    return all(name in members for name in names) and len({members[name].name for name in names}) == len(names)


def stand_in_for(name: str, constants: Sequence[str]) -> type[enum.Enum]:
    """Creates an enum class with these constants, for state whose own class is missing.

    A serializer of an enum of that name accepts its constants. Raises `UnresolvableSerializerError` for names that
    Python's enums cannot have.
    """
    class_name = name.replace("$", ".").rpartition(".")[2]
    try:
        functional_api: Any = _StandIn
        made: type[enum.Enum] = functional_api(class_name if class_name.isidentifier() else "Constant", list(constants))
    except (ValueError, TypeError) as error:
        raise UnresolvableSerializerError(
            f"the enum {name} has constants that no Python enum can have ({error}): {cut(', '.join(constants), 200)}"
        ) from error
    if len(made) != len(constants):
        raise UnresolvableSerializerError(f"the enum {name} has constants that no Python enum can have")
    setattr(made, _STAND_IN_ATTRIBUTE, name)
    return made


@register_snapshot(nested_snapshot(BASE, "EnumSerializer"))
class EnumSerializerSnapshot(RuledTypeSerializerSnapshot[C]):
    """The name of the enum and its constants in wire order."""

    current_version = 3

    def __init__(self, serializer: EnumSerializer[C] | None = None) -> None:
        self.name = serializer.name if serializer is not None else ""
        self.constants = serializer.constants if serializer is not None else ()

    def write_snapshot(self, out: DataOutputView) -> None:
        out.write_utf(self.name)
        out.write_int(len(self.constants))
        for constant in self.constants:
            out.write_utf(constant)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        if read_version < 3:
            raise SnapshotFormatError(
                f"version {read_version} of an enum snapshot is not described and not read; "
                f"write it again with a release of Flink that knows version 3"
            )
        self.name = source.read_utf()
        self.constants = tuple(source.read_utf() for _ in range(source.read_count(minimum_item_bytes=2)))
        count = len(self.constants)
        if len(set(self.constants)) != count or not 0 < count <= MAX_CONSTANTS:
            raise SnapshotFormatError(
                f"the {count} constants of the enum {self.name} are not between 1 and {MAX_CONSTANTS} different ones: "
                f"the bytes are damaged"
            )

    def restore_serializer(self) -> EnumSerializer[C]:
        """Restores the enum of that name if a known serializer has it with all constants, else a stand-in."""
        candidates = [
            known.enum_class
            for known in known_of(EnumSerializer)
            if known.name == self.name and _has_all_apart(known.enum_class, self.constants)
        ]
        if candidates:
            # An enum with exactly these constants wrote the state; any other has more constants now.
            exact = (known for known in candidates if len(known.__members__) == len(self.constants))
            return EnumSerializer(next(exact, candidates[0]), self.constants, name=self.name)
        stand_in: Any = stand_in_for(self.name, self.constants)
        return EnumSerializer(stand_in, self.constants, name=self.name)
