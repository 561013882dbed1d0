"""Migrates stored values: two generated functions from old bytes to a new value and to new bytes.

A `SchemaMigration` is created from the old snapshot, the new serializer and the plan of their compatibility result, and
runs over every entry of a state. `SchemaMigration.failure` finds the part of a value that fails; the caller adds the
entry and the state.

New bytes are read back once, but only if reading could find a problem. Bytes that the built-in rules build from parts
that were read are valid, and reading them would double the cost. Reading is needed for code that runs when a record is
created (a validator, a hook, a custom constructor), for results of converters, and for serializers and conversions
from outside this library.

`EvolutionRules` combines the rules that resolve compatibility with the table that executes plans. Custom rules are
passed explicitly and are sent to other processes with the object that uses them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from attrs import frozen

from migration.conversion import Conversion, ConversionScope, ConversionTable, Read, compile_transcoding, compile_value
from migration.conversion_table import CONVERSIONS
from snapshots.compatibility import CustomPlan, Plan, TypeSerializerSchemaCompatibility, all_plans
from snapshots.data_views import DataInputView
from snapshots.errors import StateFormatError, format_value
from snapshots.type_serializer_snapshot import RULES, CompatibilityRules, TypeSerializerSnapshot
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.references import all_inside
from typeserializers.kernel.type_serializer import TypeSerializer

_OWN_PACKAGE: Final = __name__.partition(".")[0]


def must_be_read_back(conversion: Conversion) -> bool:
    """Whether reading the new bytes could find a problem."""
    rules = conversion.scope.table.rules()
    return (
        any(serializer.may_reject_what_it_wrote for serializer in all_inside(conversion.new))
        or any(isinstance(plan, CustomPlan) for plan in all_plans(conversion.plan))
        or any(rule.__module__.partition(".")[0] != _OWN_PACKAGE for rule in rules)
    )


@frozen(eq=False)
class EvolutionRules:
    """The rules of schema evolution; by default those of this library.

    Attributes:
        compatibilities: The rules that resolve compatibility.
        conversions: The table that executes their plans.
    """

    compatibilities: CompatibilityRules = RULES
    conversions: ConversionTable = CONVERSIONS


LIBRARY_RULES: Final = EvolutionRules()
"""The rules of this library."""


T = TypeVar("T")


class MigrationError(StateFormatError):
    """An old value could not be read or converted."""


class SchemaMigration(Generic[T]):
    """Converts bytes of ``old`` to values and bytes of ``new``; the code is compiled on first use.

    Args:
        old: The serializer that the old snapshot restores with the classes of ``new``.
        new: The new serializer.
        plan: The plan of their compatibility result.
        table: The conversions that execute plans.
    """

    def __init__(
        self, old: TypeSerializer[Any], new: TypeSerializer[T], plan: Plan, table: ConversionTable = CONVERSIONS
    ) -> None:
        self.old = old
        self.new = new
        self.plan = plan
        self._scope = ConversionScope(table)
        self._read: Callable[[bytes, int], tuple[T, int]] | None = None
        self._transcode: Callable[[bytes, int], tuple[bytes, int]] | None = None

    @classmethod
    def of_compatibility(
        cls,
        old_snapshot: TypeSerializerSnapshot[Any],
        new_serializer: TypeSerializer[T],
        compatibility: TypeSerializerSchemaCompatibility[T],
    ) -> SchemaMigration[T]:
        """Creates the migration that a compatibility result requires."""
        return cls(restored_with(old_snapshot, new_serializer), new_serializer, compatibility.plan)

    @property
    def conversion(self) -> Conversion:
        """The conversion that executes the plan."""
        return self._scope.conversion(self.plan, self.old, self.new)

    @property
    def read(self) -> Callable[[bytes, int], tuple[T, int]]:
        """``read(data, position)`` returns the new value of old bytes and the position after them."""
        if self._read is None:
            self._read = compile_value(self.conversion)
        return self._read

    @property
    def transcode(self) -> Callable[[bytes, int], tuple[bytes, int]]:
        """``transcode(data, position)`` returns the new bytes of old bytes and the position after the old ones.

        If the new bytes are read back, it also raises what that read raises.
        """
        if self._transcode is None:
            conversion = self.conversion
            is_read_back = must_be_read_back(conversion)
            self._transcode = _read_back(conversion) if is_read_back else compile_transcoding(conversion)
        return self._transcode

    def to_value(self, data: bytes) -> T:
        """Returns the new value of exactly these old bytes; raises `MigrationError`."""
        value: T = self.whole(self.read, data)
        return value

    def to_bytes(self, data: bytes) -> bytes:
        """Returns the new bytes of exactly these old bytes; raises `MigrationError`."""
        encoded: bytes = self.whole(self.transcode, data)
        return encoded

    def failure(self, data: bytes, error: Exception | None) -> MigrationError:
        """Returns the error for old bytes that could not be migrated, with the path inside the value and the cause.

        Args:
            data: The old bytes.
            error: The exception; None if bytes are left over.
        """
        pair = f"{self.old!r} to {self.new!r}"
        if error is None:
            end = self.transcode(data, 0)[1]
            return MigrationError(
                f"{pair}: the old value ends at byte {end} of {len(data)}: another serializer wrote these bytes"
            )
        found = _located(self.conversion, data, 0, {})
        if found is None:
            return MigrationError(f"{pair}: {type(error).__name__}: {error}")
        path, cause, old_value = found
        where = f"{path}: " if path else ""
        return MigrationError(f"{pair}: {where}{type(cause).__name__}: {cause} (the old value is {old_value})")

    def whole(self, function: Read, data: bytes) -> Any:
        """Returns the result of a function that must read all bytes. Raises `failure`."""
        try:
            result, position = function(data, 0)
        except Exception as error:
            raise self.failure(data, error) from error
        if position != len(data):
            raise self.failure(data, None)
        return result


def _read_back(conversion: Conversion) -> Read:
    transcode, read = compile_transcoding(conversion), conversion.new.codec.read

    def checked(data: bytes, position: int) -> tuple[bytes, int]:
        encoded, end = transcode(data, position)
        if read(encoded, 0)[1] != len(encoded):
            raise MigrationError(
                f"{conversion.new!r} does not read all bytes that it wrote: make its read and write agree"
            )
        return encoded, end

    return checked


def _located(
    conversion: Conversion, data: bytes, position: int, checks: dict[int, tuple[Conversion, Read]]
) -> tuple[str, Exception, str] | None:
    """Returns path, cause and old value of the innermost part that fails; None if none does.

    ``checks`` caches compiled conversions by identity: all elements of a list share one.
    """
    if id(conversion) not in checks:
        checks[id(conversion)] = conversion, _read_back(conversion)
    try:
        checks[id(conversion)][1](data, position)
    except Exception as error:
        failure = error
    else:
        return None
    # If the value cannot be split, the error names the whole value.
    with contextlib.suppress(Exception):
        for segment, part, start in conversion.parts(data, position):
            found = _located(part, data, start, checks)
            if found is not None:
                return segment + found[0], *found[1:]
        equal = conversion.equal_keys(data, position)
        if equal is not None:
            one, other = map(format_value, equal)
            failure = MigrationError(f"{one} and {other} become equal, and one of them would be lost")
    return "", failure, _old_value(conversion, data, position)


def _old_value(conversion: Conversion, data: bytes, position: int) -> str:
    try:
        return _format_part(conversion, data, position)
    except Exception as error:
        problem = error
    # The class may be the new one and reject the value.
    with contextlib.suppress(Exception):
        parts = [
            f"{segment.removeprefix('.')}={_format_part(part, data, start)}"
            for segment, part, start in conversion.parts(data, position)
        ]
        if parts:
            return f"({', '.join(parts)})"
    return f"unreadable: {problem}"


def _format_part(conversion: Conversion, data: bytes, position: int) -> str:
    # Not by the codec: a stand-in for an old serializer can only read.
    return format_value(conversion.old.deserialize(DataInputView(data, position)))
