"""A migration: two generated functions from old bytes to a new value and to new bytes.

It is made from the old snapshot, the new serializer and the plan of their compatibility result, and is then run over
every entry of a state. New bytes are read once by the new serializer before they count, where that could find anything
(`migration.schema_migration`): a converter may have made what a record rejects, and a class may have a validator that
rejects what it accepted before. What fails is found, with its path, by
`SchemaMigration.failure`; the caller adds which entry of which state it was.

Whether new bytes must be read before they count: only where reading them could find something.

Bytes that the built-in rules put together from parts that were read are what their serializers read; reading them once
more would double the cost of a migration for nothing. What may be found is what runs when a record is made (a
validator, a hook, a constructor of one's own), what a converter returned, and whatever a serializer or a rule does
that is not of this library.

By which rules stored state may become state of another schema: who judges, and how a compatibility result's plan is
carried out.

A rule of a program's own is an object that it passes: `CompatibilityRules` on top of those of this library, and a
`ConversionTable` for plans that the library does not know. What is not passed is not asked, in this process or another:
the rules travel with what uses them.
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
from snapshots.errors import StateFormatError, shown
from snapshots.type_serializer_snapshot import RULES, CompatibilityRules, TypeSerializerSnapshot
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.references import all_inside
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["LIBRARY_RULES", "EvolutionRules"]


_OWN_PACKAGE: Final = __name__.partition(".")[0]


def must_be_read_back(conversion: Conversion) -> bool:
    """Whether something about the new serializer, or how its bytes are made, is not known to be harmless."""
    rules = conversion.scope.table.rules()
    return (
        any(serializer.may_reject_what_it_wrote for serializer in all_inside(conversion.new))
        or any(isinstance(plan, CustomPlan) for plan in all_plans(conversion.plan))
        or any(rule.__module__.partition(".")[0] != _OWN_PACKAGE for rule in rules)
    )


@frozen(eq=False)
class EvolutionRules:
    """``compatibility results`` judge what is restored, ``conversions`` carry out what they plan; without, those of
    this library.
    """

    compatibilities: CompatibilityRules = RULES
    conversions: ConversionTable = CONVERSIONS


LIBRARY_RULES: Final = EvolutionRules()
"""Those of this library alone."""


T = TypeVar("T")


class MigrationError(StateFormatError):
    """An old value could not be read, or could not be written again."""


class SchemaMigration(Generic[T]):
    """Turns what ``old`` wrote into values and bytes of ``new``, by a plan; both compiled on first use.

    ``old`` is what the old snapshot restores with the classes of ``new``, ``plan`` that of the compatibility result on
    the two, and ``table`` says which code carries plans out.
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
        """The migration that a compatibility result of ``old_snapshot`` on ``new_serializer`` asks for."""
        return cls(restored_with(old_snapshot, new_serializer), new_serializer, compatibility.plan)

    @property
    def conversion(self) -> Conversion:
        """What carries the plan out."""
        return self._scope.conversion(self.plan, self.old, self.new)

    @property
    def read(self) -> Callable[[bytes, int], tuple[T, int]]:
        """``read(data, position)`` gives the new value of old bytes and the position behind them."""
        if self._read is None:
            self._read = compile_value(self.conversion)
        return self._read

    @property
    def transcode(self) -> Callable[[bytes, int], tuple[bytes, int]]:
        """``transcode(data, position)`` gives the new bytes of old bytes and the position behind the old ones.

        It raises whatever reading the new bytes does, too, where that may raise anything.
        """
        if self._transcode is None:
            conversion = self.conversion
            is_read_back = must_be_read_back(conversion)
            self._transcode = _read_back(conversion) if is_read_back else compile_transcoding(conversion)
        return self._transcode

    def to_value(self, data: bytes) -> T:
        """The new value of exactly these old bytes."""
        value: T = self._whole(self.read, data)
        return value

    def to_bytes(self, data: bytes) -> bytes:
        """The new bytes of exactly these old bytes."""
        encoded: bytes = self._whole(self.transcode, data)
        return encoded

    def failure(self, data: bytes, error: Exception | None) -> MigrationError:
        """What to tell of old bytes that could not be migrated: where inside the value, and why.

        ``error`` is what was raised; None if nothing was, but not all the bytes were read.
        """
        pair = f"{self.old!r} to {self.new!r}"
        if error is None:
            end = self.transcode(data, 0)[1]
            return MigrationError(
                f"{pair}: the old value ends at byte {end} of {len(data)}; "
                f"these bytes were written by another serializer"
            )
        found = _located(self.conversion, data, 0, {})
        if found is None:
            return MigrationError(f"{pair}: {type(error).__name__}: {error}")
        path, cause, old_value = found
        where = f"{path}: " if path else ""
        return MigrationError(f"{pair}: {where}{type(cause).__name__}: {cause} (the old value is {old_value})")

    def _whole(self, function: Read, data: bytes) -> Any:
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
            raise MigrationError(f"{conversion.new!r} does not read what it has written to the end")
        return encoded, end

    return checked


def _located(
    conversion: Conversion, data: bytes, position: int, checks: dict[int, tuple[Conversion, Read]]
) -> tuple[str, Exception, str] | None:
    """Path, cause and old value of the innermost part that fails; None if nothing does.

    ``checks`` has what was compiled for a conversion, by its identity: one for all elements of a list.
    """
    if id(conversion) not in checks:
        checks[id(conversion)] = conversion, _read_back(conversion)
    try:
        checks[id(conversion)][1](data, position)
    except Exception as error:
        failure = error
    else:
        return None
    # What cannot be taken apart is told as a whole.
    with contextlib.suppress(Exception):
        for segment, part, start in conversion.parts(data, position):
            found = _located(part, data, start, checks)
            if found is not None:
                return segment + found[0], *found[1:]
        equal = conversion.equal_keys(data, position)
        if equal is not None:
            one, other = map(shown, equal)
            failure = MigrationError(f"{one} and {other} become equal, and one of them would be lost")
    return "", failure, _old_value(conversion, data, position)


def _old_value(conversion: Conversion, data: bytes, position: int) -> str:
    try:
        return _shown_part(conversion, data, position)
    except Exception as error:
        problem = error
    # The class may be the new one, and reject it.
    with contextlib.suppress(Exception):
        parts = [
            f"{segment.removeprefix('.')}={_shown_part(part, data, start)}"
            for segment, part, start in conversion.parts(data, position)
        ]
        if parts:
            return f"({', '.join(parts)})"
    return f"unreadable: {problem}"


def _shown_part(conversion: Conversion, data: bytes, position: int) -> str:
    # Not by the codec: what stands for an old serializer may only read.
    return shown(conversion.old.deserialize(DataInputView(data, position)))
