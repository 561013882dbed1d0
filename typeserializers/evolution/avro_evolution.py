"""Whether data of one Avro schema can be read with another: Avro's schema resolution, decided before any data is read.

The library resolves while it reads, and so finds out late: a union branch that cannot be resolved is only met with the
first value of that branch. Here every branch is looked at, each finding has a path, and logical types count, which
resolution by the library ignores. The rules are those of the Avro specification; beyond it, a decimal may gain digits
on either side of the point and a time may gain precision, because every value is kept; any other change of a logical
type is refused.

Paths: ``.field``, ``[]`` for array items, ``{value}`` for map values, ``<branch>`` for the branch of a union.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from snapshots.compatibility import FieldVerdict, Finding, TypeSerializerSchemaCompatibility, worst_kind
from snapshots.refusals import another_serializer
from snapshots.type_serializer_snapshot import RULES
from snapshots.value_text import shown
from typeserializers.avro.avro_schemas import NAMED_KINDS, NamedSchemas, layout_of, named_schemas, type_of
from typeserializers.avro.avro_serializer import AvroSerializer, AvroSerializerSnapshot
from typeserializers.evolution.evolution_plans import AvroPlan
from typeserializers.kernel.type_serializer import TypeSerializer

PROMOTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}

_CAVEATS: Final[Mapping[tuple[str, str], str]] = {
    ("int", "float"): "; beyond 2**24 it is rounded to binary32",
    ("long", "float"): "; beyond 2**24 it is rounded to binary32",
    ("long", "double"): "; beyond 2**53 it is rounded to binary64",
    ("bytes", "string"): "; bytes that are not UTF-8 stop the migration",
}

_FINER_TIMES: Final[Mapping[str, tuple[str, ...]]] = {
    "time-millis": ("time-micros",),
    "timestamp-millis": ("timestamp-micros",),
    "local-timestamp-millis": ("local-timestamp-micros",),
}


@RULES.judges(AvroSerializerSnapshot)
def judge_avro(old: AvroSerializerSnapshot, new: TypeSerializer[Any]) -> TypeSerializerSchemaCompatibility[Any]:
    """The verdict on a schema taking over the data of another one."""
    if type(new) is not AvroSerializer:
        return TypeSerializerSchemaCompatibility.incompatible(another_serializer("Avro data", "AvroSerializer", new))
    findings = resolve_schemas(named_schemas(old.schema), new.named)
    if layout_of(old.schema) == layout_of(new.schema):
        return TypeSerializerSchemaCompatibility.compatible_as_is(findings)
    if all(finding.verdict is FieldVerdict.AS_IS for finding in findings):
        reason = "the schema is another one, though the bytes are not"
        findings.append(Finding("", FieldVerdict.MIGRATE, "avro-schema-changed", reason))
    kind = worst_kind(finding.verdict.kind for finding in findings)
    return TypeSerializerSchemaCompatibility(kind, tuple(findings), plan=AvroPlan())


def resolve_schemas(writer: NamedSchemas, reader: NamedSchemas) -> list[Finding]:
    """What happens to data of the writer's schema under the reader's; no finding means nothing does."""
    return _Resolution(writer, reader).resolve(writer.schema, reader.schema, "")


class _Resolution:
    """One comparison; pairs of named types under way are taken to be resolvable, which their own findings decide."""

    def __init__(self, writer: NamedSchemas, reader: NamedSchemas) -> None:
        self.writer = writer
        self.reader = reader
        self._under_way: set[tuple[str, str]] = set()

    def resolve(self, writer_schema: Any, reader_schema: Any, path: str) -> list[Finding]:
        old, new = self.writer.resolved(writer_schema), self.reader.resolved(reader_schema)
        old_type, new_type = type_of(old), type_of(new)
        if old_type == "union":
            return self._writer_union(old, new, path)
        if new_type == "union":
            return self._reader_union(old, new, path)
        refused = _logical_type(old, new, path)
        if refused is not None and refused.verdict is FieldVerdict.REFUSE:
            return [refused]
        found = [] if refused is None else [refused]
        if old_type != new_type:
            return [*found, _promotion(old_type, new_type, path)]
        if old_type in ("record", "error"):
            return found + self._record(old, new, path)
        if old_type == "array":
            return found + self.resolve(old["items"], new["items"], path + "[]")
        if old_type == "map":
            return found + self.resolve(old["values"], new["values"], path + "{value}")
        if old_type == "enum":
            return found + _enum(old, new, path)
        if old_type == "fixed":
            return found + _fixed(old, new, path)
        return found

    def _writer_union(self, old: Sequence[Any], new: Any, path: str) -> list[Finding]:
        found: list[Finding] = []
        if type_of(new) == "union":
            order = [self._branch_name(self.reader, branch) for branch in new]
            if [self._branch_name(self.writer, branch) for branch in old] != order:
                found.append(Finding(path, FieldVerdict.MIGRATE, "avro-union-changed", f"now of {', '.join(order)}"))
        else:
            reason = f"no longer a union, but {self._branch_name(self.reader, new)}"
            found.append(Finding(path, FieldVerdict.MIGRATE, "avro-union-changed", reason))
        for branch in old:
            found += self.resolve(branch, new, f"{path}<{self._branch_name(self.writer, branch)}>")
        return found

    def _reader_union(self, old: Any, new: Sequence[Any], path: str) -> list[Finding]:
        old_type = type_of(old)
        same = [branch for branch in new if type_of(self.reader.resolved(branch)) == old_type]
        other = [branch for branch in new if branch not in same]
        best: list[Finding] | None = None
        for branch in (*same, *other):
            found = self.resolve(old, branch, path)
            if all(finding.verdict is not FieldVerdict.REFUSE for finding in found):
                return found
            # What a branch of the same type says is more to the point than that the others are of another.
            best = best if best is not None else found
        if same and best is not None:
            return best
        names = ", ".join(self._branch_name(self.reader, branch) for branch in new)
        return [
            Finding(
                path,
                FieldVerdict.REFUSE,
                "avro-union-branch",
                f"the state may hold {self._branch_name(self.writer, old)} here, which is none of {names}",
                "Keep the branch in the union",
            )
        ]

    def _branch_name(self, side: NamedSchemas, schema: Any) -> str:
        resolved = side.resolved(schema)
        kind = type_of(resolved)
        return str(resolved["name"]) if kind in NAMED_KINDS else kind

    def _record(self, old: Any, new: Any, path: str) -> list[Finding]:
        found = _names(old, new, path)
        pair = (old["name"], new["name"])
        if any(finding.verdict is FieldVerdict.REFUSE for finding in found) or pair in self._under_way:
            return found
        self._under_way.add(pair)
        old_fields = {part["name"]: part for part in old["fields"]}
        taken: list[str] = []
        for part in new["fields"]:
            where = f"{path}.{part['name']}"
            name = next((name for name in (part["name"], *part.get("aliases", ())) if name in old_fields), None)
            if name is None:
                found.append(_added(part, where))
                continue
            taken.append(name)
            if name != part["name"]:
                found.append(Finding(where, FieldVerdict.AS_IS, "avro-field-renamed", f"was {name}"))
            found += self.resolve(old_fields[name]["type"], part["type"], where)
        for name in old_fields:
            if name not in taken:
                reason = "the field is gone, its values are lost"
                fix = f'If it was renamed, give the new field "aliases": ["{name}"]'
                found.append(Finding(f"{path}.{name}", FieldVerdict.LOSSY, "avro-field-removed", reason, fix))
        if taken != [name for name in old_fields if name in taken]:
            reason = "the fields are written in another order"
            found.append(Finding(path, FieldVerdict.MIGRATE, "avro-fields-reordered", reason))
        self._under_way.discard(pair)
        return found


def _names(old: Any, new: Any, path: str) -> list[Finding]:
    old_name, new_name = old["name"], new["name"]
    if old_name.rpartition(".")[2] == new_name.rpartition(".")[2]:
        return []
    aliases = [alias.rpartition(".")[2] for alias in new.get("aliases", ())]
    if old_name.rpartition(".")[2] in aliases:
        return [Finding(path, FieldVerdict.AS_IS, "avro-renamed", f"was {old_name}")]
    return [
        Finding(
            path,
            FieldVerdict.REFUSE,
            "avro-renamed",
            f"the state holds the {type_of(old)} {old_name}, the new schema names {new_name}",
            f'If it was renamed, give the new one "aliases": ["{old_name}"]',
        )
    ]


def _added(part: Any, where: str) -> Finding:
    if "default" in part:
        return Finding(where, FieldVerdict.MIGRATE, "avro-field-added", f"default {shown(part['default'])}")
    reason = "the field is new and has no default"
    return Finding(where, FieldVerdict.REFUSE, "avro-field-added-without-default", reason, "Give it a default")


def _promotion(old_type: str, new_type: str, path: str) -> Finding:
    if new_type not in PROMOTIONS.get(old_type, ()):
        return Finding(
            path,
            FieldVerdict.REFUSE,
            "avro-type-changed",
            f"{old_type} cannot be read as {new_type}",
            "Keep the type, or add a field of another name with a default",
        )
    caveat = _CAVEATS.get((old_type, new_type), "")
    return Finding(path, FieldVerdict.MIGRATE, "avro-promoted", f"{old_type} is promoted to {new_type}{caveat}")


def _enum(old: Any, new: Any, path: str) -> list[Finding]:
    found = _names(old, new, path)
    removed = [symbol for symbol in old["symbols"] if symbol not in new["symbols"]]
    if removed and "default" in new:
        reason = f"{', '.join(removed)} are gone and become {new['default']}"
        found.append(Finding(path, FieldVerdict.LOSSY, "avro-enum-symbols-removed", reason))
    elif removed:
        reason = f"{', '.join(removed)} are gone, which the state may hold"
        fix = "Keep them, or give the enum a default"
        found.append(Finding(path, FieldVerdict.REFUSE, "avro-enum-symbols-removed", reason, fix))
    elif old["symbols"] != new["symbols"]:
        found.append(Finding(path, FieldVerdict.MIGRATE, "avro-enum-symbols-changed", "symbols were added or moved"))
    return found


def _fixed(old: Any, new: Any, path: str) -> list[Finding]:
    found = _names(old, new, path)
    if old["size"] != new["size"]:
        reason = f"{old['size']} bytes cannot be read as {new['size']}"
        found.append(Finding(path, FieldVerdict.REFUSE, "avro-fixed-size", reason, "Keep the size"))
    return found


def _logical_type(old: Any, new: Any, path: str) -> Finding | None:
    old_logical = old.get("logicalType") if isinstance(old, dict) else None
    new_logical = new.get("logicalType") if isinstance(new, dict) else None
    if old_logical == new_logical == "decimal":
        return _decimal(old, new, path)
    if old_logical == new_logical:
        return None
    if new_logical in _FINER_TIMES.get(str(old_logical), ()):
        reason = f"{old_logical} becomes {new_logical}"
        return Finding(path, FieldVerdict.MIGRATE, "avro-time-precision", reason)
    reason = f"the logical type was {old_logical or 'none'} and would be {new_logical or 'none'}"
    return Finding(path, FieldVerdict.REFUSE, "avro-logical-type", reason, "Keep the logical type")


def _decimal(old: Any, new: Any, path: str) -> Finding | None:
    old_scale, new_scale = old.get("scale", 0), new.get("scale", 0)
    old_digits, new_digits = old["precision"] - old_scale, new["precision"] - new_scale
    if (old_scale, old_digits) == (new_scale, new_digits):
        return None
    change = f"decimal({old['precision']}, {old_scale}) to decimal({new['precision']}, {new_scale})"
    if new_scale >= old_scale and new_digits >= old_digits:
        return Finding(path, FieldVerdict.MIGRATE, "avro-decimal-widened", change)
    fix = "Let neither the digits before the point nor those behind it become fewer"
    return Finding(path, FieldVerdict.REFUSE, "avro-decimal-narrowed", f"{change} does not hold every value", fix)
