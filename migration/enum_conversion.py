"""The conversion of enums: each old ordinal is the constant that the plan names."""

from __future__ import annotations

import enum
from typing import Any

from migration.conversion import Conversion
from snapshots.errors import MalformedDataError
from typeserializers.evolution.evolution_plans import EnumPlan
from typeserializers.kernel.code_generation import ReadEmitter
from typeserializers.scalars.enums import EnumSerializer


class EnumConversion(Conversion):
    """An old ordinal becomes the new constant of its name, or of which its name is an alias."""

    plan: EnumPlan
    new: EnumSerializer[Any]

    def emit_value(self, reader: ReadEmitter) -> str:
        known = self.new.enum_class.__members__
        constants: dict[int, enum.Enum] = {ordinal: known[name] for ordinal, name in enumerate(self.plan.constants)}
        result, name = reader.function.fresh("v"), self.new.name

        def constant_of(ordinal: int) -> enum.Enum:
            constant = constants.get(ordinal)
            if constant is None:
                raise MalformedDataError(f"{ordinal} is the ordinal of no constant that {name} has")
            return constant

        ordinal = reader.fixed("i")
        reader.line(f"{result} = {reader.function.bind('constant_of', constant_of)}({ordinal})")
        return result
