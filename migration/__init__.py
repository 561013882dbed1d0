"""Executes compatibility plans: old bytes to new bytes.

`typeserializers.evolution` decides what a plan is. This package compiles and runs it. The caller decides which bytes
are migrated, and when.
"""

try:
    from snapshots.packages import check_packages
except ImportError as error:
    import snapshots

    raise ImportError(
        f"{snapshots.__file__} is found in place of the package 'snapshots' of Statebackend: rename it"
    ) from error

check_packages()

from migration.conversion import AsIsConversion, Conversion, ConversionScope, ConversionTable
from migration.conversion_table import CONVERSIONS
from migration.schema_migration import LIBRARY_RULES, EvolutionRules, MigrationError, SchemaMigration

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
