"""The conversion of enums: by the names of the constants, whatever class the old ones were restored as."""

from __future__ import annotations

import enum
from typing import Any

from migration.conversion import Conversion, register_conversion
from snapshots.errors import MalformedDataError
from typeserializers.kernel.code_generation import ReadEmitter
from typeserializers.scalars.enums import EnumSerializer


@register_conversion
class EnumConversion(Conversion):
    """An old ordinal becomes the new constant of its name, or of which its name is an alias."""

    old_class = EnumSerializer
    new_class = EnumSerializer

    old: EnumSerializer[Any]
    new: EnumSerializer[Any]

    def emit_value(self, reader: ReadEmitter) -> str:
        known = self.new.enum_class.__members__
        constants: dict[int, enum.Enum] = {
            ordinal: known[name] for ordinal, name in enumerate(self.old.constants) if name in known
        }
        result, name = reader.function.fresh("v"), self.new.name

        def constant_of(ordinal: int) -> enum.Enum:
            constant = constants.get(ordinal)
            if constant is None:
                raise MalformedDataError(f"{ordinal} is the ordinal of no constant that {name} has")
            return constant

        ordinal = reader.fixed("i")
        reader.line(f"{result} = {reader.function.bind('constant_of', constant_of)}({ordinal})")
        return result
