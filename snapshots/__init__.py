"""What a serializer was, and whether another may take over: the ground floor of the project.

Snapshots, their envelope, verdicts and plans as data. No value is read here, and no serializer is known but by name:
the rules of single types are in `typeserializers.evolution`.
"""

import statebackend_floors  # noqa: F401  first: it names a file that stands in the place of a package
from snapshots.compatibility import (
    CompatibilityKind,
    FieldVerdict,
    Finding,
    TypeSerializerSchemaCompatibility,
    worst_kind,
)
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
from snapshots.plans import AsIsPlan, CustomPlan, PartsPlan, Plan, RewritePlan
from snapshots.type_serializer_snapshot import (
    SimpleTypeSerializerSnapshot,
    TypeSerializerSnapshot,
    resolve_compatibility,
)
from snapshots.verdict_tree import VerdictNode, format_tree, verdict_tree

__all__ = [
    "AsIsPlan",
    "CompatibilityKind",
    "CompositeTypeSerializerSnapshot",
    "CustomPlan",
    "DataInputView",
    "DataOutputView",
    "EndOfDataError",
    "FieldVerdict",
    "Finding",
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
    "VerdictNode",
    "allow_snapshot_modules",
    "allowed_snapshot_modules",
    "format_tree",
    "read_versioned_snapshot",
    "register_snapshot",
    "registered_names",
    "resolve_compatibility",
    "snapshot_class_for",
    "snapshot_class_name",
    "snapshot_from_bytes",
    "snapshot_to_bytes",
    "verdict_tree",
    "worst_kind",
    "write_versioned_snapshot",
]
