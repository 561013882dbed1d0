"""Serializer snapshots, compatibility results and their versioned envelopes.

The lowest layer. It reads no value and knows serializers by name only. The rules of single types are in
`typeserializers.evolution`.
"""

from snapshots.compatibility import (
    AsIsPlan,
    CompatibilityIssue,
    CompatibilityKind,
    CustomPlan,
    FieldCompatibility,
    PartsPlan,
    Plan,
    RewritePlan,
    TypeSerializerSchemaCompatibility,
    worst_kind,
)
from snapshots.compatibility_report import CompatibilityNode, compatibility_tree, format_tree
from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import (
    read_versioned_snapshot,
    register_snapshot,
    registered_names,
    snapshot_class_for,
    snapshot_class_name,
    snapshot_from_bytes,
    snapshot_to_bytes,
    write_versioned_snapshot,
)
from snapshots.errors import (
    EndOfDataError,
    MalformedDataError,
    SerializationError,
    SnapshotFormatError,
    StateFormatError,
    TrailingBytesError,
    UnknownSnapshotError,
    UnresolvableSerializerError,
)
from snapshots.permitted_modules import allow_snapshot_modules, allowed_snapshot_modules
from snapshots.type_serializer_snapshot import (
    SimpleTypeSerializerSnapshot,
    TypeSerializerSnapshot,
    resolve_compatibility,
)

__all__ = [
    "AsIsPlan",
    "CompatibilityIssue",
    "CompatibilityKind",
    "CompatibilityNode",
    "CompositeTypeSerializerSnapshot",
    "CustomPlan",
    "DataInputView",
    "DataOutputView",
    "EndOfDataError",
    "FieldCompatibility",
    "MalformedDataError",
    "PartsPlan",
    "Plan",
    "RewritePlan",
    "SerializationError",
    "SimpleTypeSerializerSnapshot",
    "SnapshotFormatError",
    "StateFormatError",
    "TrailingBytesError",
    "TypeSerializerSchemaCompatibility",
    "TypeSerializerSnapshot",
    "UnknownSnapshotError",
    "UnresolvableSerializerError",
    "allow_snapshot_modules",
    "allowed_snapshot_modules",
    "compatibility_tree",
    "format_tree",
    "read_versioned_snapshot",
    "register_snapshot",
    "registered_names",
    "resolve_compatibility",
    "snapshot_class_for",
    "snapshot_class_name",
    "snapshot_from_bytes",
    "snapshot_to_bytes",
    "worst_kind",
    "write_versioned_snapshot",
]
