"""Old bytes to new bytes, when a snapshot says so."""

import statebackend_floors  # noqa: F401  first: it names a file that stands in the place of a package
from migration.conversion import (
    Conversion,
    PassingConversion,
    conversion_between,
    register_composite_conversion,
    register_conversion,
    register_wrapping_conversion,
)
from migration.schema_migration import MigrationError, SchemaMigration

__all__ = [
    "Conversion",
    "MigrationError",
    "PassingConversion",
    "SchemaMigration",
    "conversion_between",
    "register_composite_conversion",
    "register_conversion",
    "register_wrapping_conversion",
]
