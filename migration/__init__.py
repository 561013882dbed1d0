"""Old bytes to new bytes: the plans that verdicts carry, compiled into code.

Here is how each plan is carried out (`conversion_table` lists them), and the migration of whole values made of that.
Nothing here judges: whether something may become something else, and which part goes on as which, is decided in
`typeserializers.evolution`. Where the bytes lie, and which are migrated when, is up to who calls.
"""

import statebackend_floors  # noqa: F401  first: it names a file that stands in the place of a package
from migration.conversion import (
    AsIsConversion,
    Conversion,
    ConversionScope,
    ConversionTable,
)
from migration.conversion_table import CONVERSIONS
from migration.evolution_rules import LIBRARY_RULES, EvolutionRules
from migration.schema_migration import MigrationError, SchemaMigration

__all__ = [
    "CONVERSIONS",
    "LIBRARY_RULES",
    "AsIsConversion",
    "Conversion",
    "ConversionScope",
    "ConversionTable",
    "EvolutionRules",
    "MigrationError",
    "SchemaMigration",
]
