"""Avro's schema resolution, decided on the two schemas before any data is read.

The Avro library resolves while it reads and so finds problems late: an unresolvable union branch fails at the first
value of that branch. This module checks every branch, gives each issue a path, and checks logical types, which the
library ignores. The rules are those of the Avro specification, with two additions that keep every value: a decimal may
gain digits before and after the point, and a time may gain precision. Any other change of a logical type is rejected.

Fields are matched as record fields are (`match_fields`), with aliases as former names. If an alias refers to a name
that is in use again, the library would match differently, and the change is rejected as ambiguous.

Paths: ``.field``, ``[]`` for array items, ``{value}`` for map values, ``<branch>`` for the branch of a union.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import evolve, frozen

from snapshots.compatibility import (
    CompatibilityIssue,
    FieldCompatibility,
    TypeSerializerSchemaCompatibility,
    another_serializer,
    worst_kind,
)
from snapshots.compatibility_report import SEVERITY
from snapshots.errors import format_value
from snapshots.type_serializer_snapshot import RULES
from typeserializers.avro import (
    NAMED_KINDS,
    AvroSerializer,
    AvroSerializerSnapshot,
    NamedSchemas,
    layout_of,
    named_schemas,
    type_of,
)
from typeserializers.evolution.plans import AvroPlan
from typeserializers.evolution.record_evolution import match_fields
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


@RULES.resolves(AvroSerializerSnapshot)
def resolve_avro(old: AvroSerializerSnapshot, new: TypeSerializer[Any]) -> TypeSerializerSchemaCompatibility[Any]:
    """Resolves a schema over the data of another schema."""
    if type(new) is not AvroSerializer:
        return TypeSerializerSchemaCompatibility.incompatible(
            another_serializer("Avro data", "AvroSerializer", new, "AvroSerializer(old_schema)")
        )
    resolution = _Resolution(named_schemas(old.schema), new.named)
    issues = resolution.issues()
    rejected = any(issue.compatibility is FieldCompatibility.REJECT for issue in issues)
    if layout_of(old.schema) == layout_of(new.schema) and not rejected:
        return TypeSerializerSchemaCompatibility.compatible_as_is(issues)
    if all(issue.compatibility is FieldCompatibility.AS_IS for issue in issues):
        reason = "the schema changed, and the bytes did not"
        issues.append(CompatibilityIssue("", FieldCompatibility.MIGRATE, "avro-schema-changed", reason))
    kind = worst_kind(issue.compatibility.kind for issue in issues)
    plan = None if rejected else AvroPlan(resolution.reader_schema())
    return TypeSerializerSchemaCompatibility(kind, tuple(issues), plan=plan)


def resolve_schemas(writer: NamedSchemas, reader: NamedSchemas) -> list[CompatibilityIssue]:
    """Returns the issues of data of the writer's schema under the reader's; none if nothing changes."""
    return _Resolution(writer, reader).issues()


@frozen
class _Field:
    """A record field for `match_fields`: its aliases are its former names."""

    name: str
    former_names: tuple[str, ...]
    schema: Any

    @classmethod
    def of(cls, record: Any) -> list[_Field]:
        return [cls(part["name"], tuple(part.get("aliases", ())), part) for part in record["fields"]]


class _Resolution:
    """Compares two schemas; each pair of records is compared once.

    A pair whose comparison is running counts as resolvable. If it turns out incompatible, the results that relied on it
    are dropped. A pair that was compared at another path gets one issue that names the path.
    """

    def __init__(self, writer: NamedSchemas, reader: NamedSchemas) -> None:
        self.writer = writer
        self.reader = reader
        self._under_way: set[tuple[str, str]] = set()
        self._compared: dict[tuple[str, str], tuple[CompatibilityIssue, ...]] = {}
        self._used_aliases: set[tuple[str, str, str]] = set()
        """Reader type, its field or an empty name, and the writer's name that continues as it."""

    def issues(self) -> list[CompatibilityIssue]:
        return self.resolve(self.writer.schema, self.reader.schema, "")

    def reader_schema(self) -> Any:
        """Returns the reader's schema without the aliases that would make the library match differently."""
        return self._with_used_aliases(self.reader.schema)

    def _with_used_aliases(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self._with_used_aliases(branch) for branch in schema]
        if not isinstance(schema, dict):
            return schema
        kept = {
            key: self._with_used_aliases(schema[key]) if key in ("items", "values") else schema[key] for key in schema
        }
        if schema["type"] in NAMED_KINDS:
            name = schema["name"]
            self._keep_aliases(kept, name, "")
            if "fields" in schema:
                kept["fields"] = [{**part, "type": self._with_used_aliases(part["type"])} for part in schema["fields"]]
                for part in kept["fields"]:
                    self._keep_aliases(part, name, part["name"])
        return kept

    def _keep_aliases(self, named: dict[str, Any], type_name: str, field_name: str) -> None:
        aliases = named.pop("aliases", ())
        used = [alias for alias in aliases if (type_name, field_name, _short(alias)) in self._used_aliases]
        if used:
            named["aliases"] = used

    def resolve(self, writer_schema: Any, reader_schema: Any, path: str) -> list[CompatibilityIssue]:
        old, new = self.writer.resolved(writer_schema), self.reader.resolved(reader_schema)
        old_type, new_type = type_of(old), type_of(new)
        if old_type == "union":
            return self._writer_union(old, new, path)
        if new_type == "union":
            return self._reader_union(old, new, path)
        rejected = _logical_type(old, new, path)
        if rejected is not None and rejected.compatibility is FieldCompatibility.REJECT:
            return [rejected]
        found = [] if rejected is None else [rejected]
        if old_type != new_type:
            return [*found, _promotion(old_type, new_type, path)]
        if old_type in ("record", "error"):
            return found + self._record(old, new, path)
        if old_type == "array":
            return found + self.resolve(old["items"], new["items"], path + "[]")
        if old_type == "map":
            return found + self.resolve(old["values"], new["values"], path + "{value}")
        if old_type == "enum":
            return found + self._names(old, new, path) + _enum(old, new, path)
        if old_type == "fixed":
            return found + self._names(old, new, path) + _fixed(old, new, path)
        return found

    def _writer_union(self, old: Sequence[Any], new: Any, path: str) -> list[CompatibilityIssue]:
        found: list[CompatibilityIssue] = []
        if type_of(new) == "union":
            order = [self._branch_name(self.reader, branch) for branch in new]
            if [self._branch_name(self.writer, branch) for branch in old] != order:
                found.append(
                    CompatibilityIssue(
                        path, FieldCompatibility.MIGRATE, "avro-union-changed", f"now of {', '.join(order)}"
                    )
                )
        else:
            reason = f"no longer a union, but {self._branch_name(self.reader, new)}"
            found.append(CompatibilityIssue(path, FieldCompatibility.MIGRATE, "avro-union-changed", reason))
        for branch in old:
            found += self.resolve(branch, new, f"{path}<{self._branch_name(self.writer, branch)}>")
        return found

    def _reader_union(self, old: Any, new: Sequence[Any], path: str) -> list[CompatibilityIssue]:
        old_type = type_of(old)
        same = [branch for branch in new if type_of(self.reader.resolved(branch)) == old_type]
        if old_type in NAMED_KINDS:
            successors = [branch for branch in same if self._may_continue_as(old, branch)]
            if len(successors) > 1:
                names = " or as ".join(self._branch_name(self.reader, branch) for branch in successors)
                reason = f"the stored {old['name']} could continue as {names}"
                fix = f"Remove the alias {_short(old['name'])}, or give the other one another name"
                return [CompatibilityIssue(path, FieldCompatibility.REJECT, "avro-rename-ambiguous", reason, fix)]
            if successors:
                return self.resolve(old, successors[0], path)
        other = [branch for branch in new if branch not in same]
        best: list[CompatibilityIssue] | None = None
        for branch in (*same, *other):
            found = self.resolve(old, branch, path)
            if all(issue.compatibility is not FieldCompatibility.REJECT for issue in found):
                return found
            # The issues of a branch of the same type explain more than those of other types.
            best = best if best is not None else found
        if same and best is not None:
            return best
        names = ", ".join(self._branch_name(self.reader, branch) for branch in new)
        return [
            CompatibilityIssue(
                path,
                FieldCompatibility.REJECT,
                "avro-union-branch",
                f"the state may hold {self._branch_name(self.writer, old)} here, and the new union has only {names}",
                "Keep the branch in the union",
            )
        ]

    def _may_continue_as(self, old: Any, branch: Any) -> bool:
        """Whether a branch has the name of the writer's type, or is new and has that name as an alias."""
        new = self.reader.resolved(branch)
        if _short(new["name"]) == _short(old["name"]):
            return True
        written = {_short(name) for name in self.writer.names}
        return _short(new["name"]) not in written and _has_alias(new, old["name"])

    def _branch_name(self, side: NamedSchemas, schema: Any) -> str:
        resolved = side.resolved(schema)
        kind = type_of(resolved)
        return str(resolved["name"]) if kind in NAMED_KINDS else kind

    def _record(self, old: Any, new: Any, path: str) -> list[CompatibilityIssue]:
        found = self._names(old, new, path)
        pair = (old["name"], new["name"])
        if any(issue.compatibility is FieldCompatibility.REJECT for issue in found) or pair in self._under_way:
            return found
        if pair in self._compared:
            return [evolve(issue, path=path) for issue in self._compared[pair]]
        self._under_way.add(pair)
        compared_before = len(self._compared)
        old_fields = {part["name"]: part for part in old["fields"]}
        taken: list[str] = []
        for match in match_fields(_Field.of(old), _Field.of(new)):
            part = match.new
            where = f"{path}.{part.name}"
            name = None if match.old_index is None else old["fields"][match.old_index]["name"]
            former = match.disputed or (name if name != part.name and part.name in old_fields else None)
            if former or match.claimant:
                # The library looks for the field's own name first, so it cannot apply this alias.
                claimant, former = (match.claimant, part.name) if match.claimant else (part.name, former)
                reason = f"{claimant} has the alias {former}, which is also the name of another field"
                fix = f"Remove the alias; or first restore with a schema in which no field has the name {former}"
                found.append(CompatibilityIssue(where, FieldCompatibility.REJECT, "avro-rename-ambiguous", reason, fix))
            elif name is None:
                found.append(_added(part.schema, where))
            else:
                if name != part.name:
                    self._used_aliases.add((new["name"], part.name, name))
                    found.append(
                        CompatibilityIssue(where, FieldCompatibility.AS_IS, "avro-field-renamed", f"was {name}")
                    )
                found += self.resolve(old_fields[name]["type"], part.schema["type"], where)
            if name is not None:
                taken.append(name)
        for name in old_fields:
            if name not in taken:
                reason = "the field was removed, and its values are lost"
                fix = ""
                if not any(name in part.get("aliases", ()) for part in new["fields"]):
                    fix = f'If it was renamed, give the new field "aliases": ["{name}"]'
                found.append(
                    CompatibilityIssue(f"{path}.{name}", FieldCompatibility.LOSSY, "avro-field-removed", reason, fix)
                )
        if taken != [name for name in old_fields if name in taken]:
            reason = "the fields are written in another order"
            found.append(CompatibilityIssue(path, FieldCompatibility.MIGRATE, "avro-fields-reordered", reason))
        self._under_way.discard(pair)
        worst = max(found, key=lambda issue: SEVERITY.index(issue.compatibility), default=None)
        if worst is not None and worst.compatibility is FieldCompatibility.REJECT:
            for other in list(self._compared)[compared_before:]:
                if all(issue.compatibility is not FieldCompatibility.REJECT for issue in self._compared[other]):
                    del self._compared[other]
        reason = f"{old['name']} changes here as at {path or 'the top'}"
        fix = "" if worst is None else worst.fix
        self._compared[pair] = (
            () if worst is None else (CompatibilityIssue("", worst.compatibility, worst.rule, reason, fix),)
        )
        return found

    def _names(self, old: Any, new: Any, path: str) -> list[CompatibilityIssue]:
        old_name, new_name = old["name"], new["name"]
        if _short(old_name) == _short(new_name):
            return []
        if _has_alias(new, old_name):
            self._used_aliases.add((new_name, "", _short(old_name)))
            return [CompatibilityIssue(path, FieldCompatibility.AS_IS, "avro-renamed", f"was {old_name}")]
        return [
            CompatibilityIssue(
                path,
                FieldCompatibility.REJECT,
                "avro-renamed",
                f"the state holds the {type_of(old)} {old_name}, and the new schema has {new_name}",
                f'If it was renamed, give the new one "aliases": ["{old_name}"]',
            )
        ]


def _short(name: str) -> str:
    """Returns a name without its namespace; types are compared by it."""
    return name.rpartition(".")[2]


def _has_alias(new: Any, old_name: str) -> bool:
    return _short(old_name) in [_short(alias) for alias in new.get("aliases", ())]


def _added(part: Any, where: str) -> CompatibilityIssue:
    if "default" in part:
        return CompatibilityIssue(
            where, FieldCompatibility.MIGRATE, "avro-field-added", f"default {format_value(part['default'])}"
        )
    reason = "the field is new and has no default"
    return CompatibilityIssue(
        where, FieldCompatibility.REJECT, "avro-field-added-without-default", reason, "Give it a default"
    )


def _promotion(old_type: str, new_type: str, path: str) -> CompatibilityIssue:
    if new_type not in PROMOTIONS.get(old_type, ()):
        return CompatibilityIssue(
            path,
            FieldCompatibility.REJECT,
            "avro-type-changed",
            f"{old_type} cannot be read as {new_type}",
            "Keep the type, or add a field of another name with a default",
        )
    caveat = _CAVEATS.get((old_type, new_type), "")
    return CompatibilityIssue(
        path, FieldCompatibility.MIGRATE, "avro-promoted", f"{old_type} is promoted to {new_type}{caveat}"
    )


def _enum(old: Any, new: Any, path: str) -> list[CompatibilityIssue]:
    found = []
    removed = [symbol for symbol in old["symbols"] if symbol not in new["symbols"]]
    if removed and "default" in new:
        reason = f"{', '.join(removed)} were removed and become {new['default']}"
        found.append(CompatibilityIssue(path, FieldCompatibility.LOSSY, "avro-enum-symbols-removed", reason))
    elif removed:
        reason = f"{', '.join(removed)} were removed, and the state may hold them"
        fix = "Keep them, or give the enum a default"
        found.append(CompatibilityIssue(path, FieldCompatibility.REJECT, "avro-enum-symbols-removed", reason, fix))
    elif old["symbols"] != new["symbols"]:
        found.append(
            CompatibilityIssue(
                path, FieldCompatibility.MIGRATE, "avro-enum-symbols-changed", "symbols were added or moved"
            )
        )
    return found


def _fixed(old: Any, new: Any, path: str) -> list[CompatibilityIssue]:
    found = []
    if old["size"] != new["size"]:
        reason = f"{old['size']} bytes cannot be read as {new['size']}"
        found.append(CompatibilityIssue(path, FieldCompatibility.REJECT, "avro-fixed-size", reason, "Keep the size"))
    return found


def _logical_type(old: Any, new: Any, path: str) -> CompatibilityIssue | None:
    old_logical = old.get("logicalType") if isinstance(old, dict) else None
    new_logical = new.get("logicalType") if isinstance(new, dict) else None
    if old_logical == new_logical == "decimal":
        return _decimal(old, new, path)
    if old_logical == new_logical:
        return None
    if new_logical in _FINER_TIMES.get(str(old_logical), ()):
        reason = f"{old_logical} becomes {new_logical}"
        return CompatibilityIssue(path, FieldCompatibility.MIGRATE, "avro-time-precision", reason)
    reason = f"the logical type was {old_logical or 'none'} and would be {new_logical or 'none'}"
    return CompatibilityIssue(path, FieldCompatibility.REJECT, "avro-logical-type", reason, "Keep the logical type")


def _decimal(old: Any, new: Any, path: str) -> CompatibilityIssue | None:
    old_scale, new_scale = old.get("scale", 0), new.get("scale", 0)
    old_digits, new_digits = old["precision"] - old_scale, new["precision"] - new_scale
    if (old_scale, old_digits) == (new_scale, new_digits):
        return None
    change = f"decimal({old['precision']}, {old_scale}) to decimal({new['precision']}, {new_scale})"
    if new_scale >= old_scale and new_digits >= old_digits:
        return CompatibilityIssue(path, FieldCompatibility.MIGRATE, "avro-decimal-widened", change)
    fix = "Keep at least as many digits before and after the point"
    return CompatibilityIssue(
        path, FieldCompatibility.REJECT, "avro-decimal-narrowed", f"{change} does not hold every value", fix
    )
