"""By which rules stored state may become state of another schema: who judges, and how a verdict's plan is carried out.

A rule of a program's own is an object that it passes: `VerdictRules` on top of those of this library, and a
`ConversionTable` for plans that the library does not know. What is not passed is not asked, in this process or another:
the rules travel with what uses them.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

from migration.conversion import ConversionTable
from migration.conversion_table import CONVERSIONS
from snapshots.type_serializer_snapshot import RULES, VerdictRules

__all__ = ["LIBRARY_RULES", "EvolutionRules"]


@frozen(eq=False)
class EvolutionRules:
    """``verdicts`` judge what is restored, ``conversions`` carry out what they plan; without, those of this library."""

    verdicts: VerdictRules = RULES
    conversions: ConversionTable = CONVERSIONS


LIBRARY_RULES: Final = EvolutionRules()
"""Those of this library alone."""
