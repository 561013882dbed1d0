"""The compatibility result of an old serializer snapshot on a new serializer.

There are four kinds, as in Flink: *as is*, *after migration*, *with reconfigured serializer*, *incompatible*. A
compatibility result carries its issues: one per field path, each with a rule id, the reason and what to do. The kind
of a compatibility result over several parts is the worst of its parts in the order *incompatible* > *after migration*
> *reconfigured* > *as is* (`worst_kind`); a lossy issue is a migration that drops something, and says so.

A compatibility result that is not *incompatible* also carries its plan (`snapshots.compatibility`): what becomes of
the bytes, part by part.

Paths: a record field is ``.name``, a list element ``[]``, a map's key and value ``{key}`` and ``{value}``, a tuple
field ``[2]``; the root is the empty path.

What a compatibility result says is to be done with the bytes: its plan, a small tree of data.

Whoever judges finds out which old part a new one goes on from, and by what rule; the plan keeps it, so that whoever
carries the compatibility result out (`migration`) need not find it out again, and cannot find something else. A plan
is relative to the pair that was judged: the serializer that the old snapshot restores, and the new serializer; it
names their parts by index or name and holds neither of them.

Three forms are known here, because any snapshot may need them; those of the rules are in
`typeserializers.evolution.plans`, and one whose code is somebody else's is a `CustomPlan`:

    as is         the new serializer reads the old bytes and writes them alike
    rewriting     the restored serializer reads a value, which the new one writes, and reads as its own. What a
    compatibility result
                  without a plan means, if it is not *as is*
    parts         two composites of one class: part by part, then whatever the outer configuration asks for

The rejection that every family has to give: the state was written by a serializer of another class.
"""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from attrs import evolve, field, frozen

if TYPE_CHECKING:
    from typeserializers.kernel.type_serializer import TypeSerializer


class Plan:
    """What is to be done with the bytes of one value; see the module."""

    def parts_of_plan(self) -> tuple[Plan, ...]:
        """The plans inside this one; none by default."""
        return ()


@frozen
class AsIsPlan(Plan):
    """The bytes stay, and the new serializer reads them."""


@frozen
class RewritePlan(Plan):
    """The value that the restored serializer reads goes through the new one."""


@frozen
class PartsPlan(Plan):
    """One plan for each nested serializer of two composites, in their order."""

    parts: tuple[Plan, ...]

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return self.parts


class CustomPlan(Plan):
    """A plan that brings its own code, for a snapshot whose rule none of the others can say."""

    @abstractmethod
    def conversion(self, old: TypeSerializer[Any], new: TypeSerializer[Any], plans: Any) -> Any:
        """The `migration.conversion.Conversion` of the pair; ``plans`` is the `migration.conversion.ConversionScope`
        that makes conversions of plans inside this one.
        """


AS_IS: Final = AsIsPlan()
REWRITE: Final = RewritePlan()


def all_plans(plan: Plan) -> Iterator[Plan]:
    """The plan and every plan inside it."""
    yield plan
    for part in plan.parts_of_plan():
        yield from all_plans(part)


T = TypeVar("T")


class CompatibilityKind(enum.IntEnum):
    """The four compatibility results, ordered by severity so that the worst of several is their maximum."""

    AS_IS = 0
    WITH_RECONFIGURED_SERIALIZER = 1
    AFTER_MIGRATION = 2
    INCOMPATIBLE = 3

    @property
    def label(self) -> str:
        """The compatibility result in words, for reports."""
        return _KIND_LABELS[self]


_KIND_LABELS = {
    CompatibilityKind.AS_IS: "compatible as is",
    CompatibilityKind.WITH_RECONFIGURED_SERIALIZER: "compatible with reconfigured serializer",
    CompatibilityKind.AFTER_MIGRATION: "compatible after migration",
    CompatibilityKind.INCOMPATIBLE: "incompatible",
}


class FieldCompatibility(enum.Enum):
    """What happens to the data at one path."""

    AS_IS = "as is"
    RECONFIGURE = "reconfigure"
    MIGRATE = "migrate"
    LOSSY = "lossy"
    REJECT = "reject"

    @property
    def kind(self) -> CompatibilityKind:
        """The compatibility result on the whole that this issue alone would lead to."""
        return _KIND_OF_FIELD_VERDICT[self]


_KIND_OF_FIELD_VERDICT = {
    FieldCompatibility.AS_IS: CompatibilityKind.AS_IS,
    FieldCompatibility.RECONFIGURE: CompatibilityKind.WITH_RECONFIGURED_SERIALIZER,
    FieldCompatibility.MIGRATE: CompatibilityKind.AFTER_MIGRATION,
    FieldCompatibility.LOSSY: CompatibilityKind.AFTER_MIGRATION,
    FieldCompatibility.REJECT: CompatibilityKind.INCOMPATIBLE,
}


@frozen
class CompatibilityIssue:
    """What was found at one path: the compatibility result there, the id of the rule that gave it, why, and what to
    do.
    """

    path: str
    compatibility: FieldCompatibility
    rule: str
    reason: str
    fix: str = ""
    merges_values: bool = False
    """Whether different old values become equal new ones, so that keys of a map could collide."""

    def below(self, prefix: str) -> CompatibilityIssue:
        """The same issue seen from a parent, whose path to here is ``prefix``."""
        return evolve(self, path=prefix + self.path)

    def to_dict(self) -> dict[str, str]:
        """The issue as plain data, for tools; `from_dict` is the way back."""
        return {
            "path": self.path,
            "verdict": self.compatibility.name,
            "rule": self.rule,
            "reason": self.reason,
            "fix": self.fix,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, str]) -> CompatibilityIssue:
        """The issue that `to_dict` gave."""
        return cls(plain["path"], FieldCompatibility[plain["verdict"]], plain["rule"], plain["reason"], plain["fix"])

    def __str__(self) -> str:
        text = f"{self.path or '(whole value)'}: {self.compatibility.value} [{self.rule}] {self.reason}"
        return f"{text}. {self.fix}" if self.fix else text


def worst_kind(kinds: Iterable[CompatibilityKind]) -> CompatibilityKind:
    """The compatibility result over several parts: *incompatible* > *after migration* > *reconfigured* > *as is*."""
    return max(kinds, default=CompatibilityKind.AS_IS)


@frozen
class TypeSerializerSchemaCompatibility(Generic[T]):
    """A compatibility result with its issues; only *with reconfigured serializer* carries a serializer.

    The reconfigured serializer reads the old bytes *and* is to be used instead of the one that was judged.
    """

    kind: CompatibilityKind
    issues: tuple[CompatibilityIssue, ...] = ()
    _reconfigured_serializer: TypeSerializer[T] | None = None
    unchanged: tuple[str, ...] = field(default=(), kw_only=True)
    """The paths of record fields about which there is nothing to say: the same name, place and type."""

    _plan: Plan | None = field(default=None, kw_only=True, eq=False)

    def __attrs_post_init__(self) -> None:
        carries = self._reconfigured_serializer is not None
        if carries != (self.kind is CompatibilityKind.WITH_RECONFIGURED_SERIALIZER):
            raise ValueError(
                f"a compatibility result '{self.kind.label}' and a reconfigured serializer do not go together"
            )

    @classmethod
    def compatible_as_is(
        cls, issues: Iterable[CompatibilityIssue] = (), *, plan: Plan | None = None
    ) -> TypeSerializerSchemaCompatibility[T]:
        """The new serializer reads the old bytes and writes them alike."""
        return cls(CompatibilityKind.AS_IS, tuple(issues), plan=plan)

    @classmethod
    def compatible_after_migration(
        cls, issues: Iterable[CompatibilityIssue] = (), *, plan: Plan | None = None
    ) -> TypeSerializerSchemaCompatibility[T]:
        """The old bytes must be made those of the new serializer before use.

        Without a plan they are read by the old serializer, and what it returns is written by the new one.
        """
        return cls(CompatibilityKind.AFTER_MIGRATION, tuple(issues), plan=plan)

    @classmethod
    def compatible_with_reconfigured_serializer(
        cls, serializer: TypeSerializer[T], issues: Iterable[CompatibilityIssue] = (), *, plan: Plan | None = None
    ) -> TypeSerializerSchemaCompatibility[T]:
        """``serializer``, a reconfigured form of the new one, reads the old bytes and is to be used.

        The plan leads to the new serializer as it was judged: it is followed where something around asks for migration.
        """
        return cls(CompatibilityKind.WITH_RECONFIGURED_SERIALIZER, tuple(issues), serializer, plan=plan)

    @classmethod
    def incompatible(cls, *issues: CompatibilityIssue) -> TypeSerializerSchemaCompatibility[T]:
        """The new serializer cannot take over; each issue says where, why and what to do."""
        return cls(CompatibilityKind.INCOMPATIBLE, tuple(issues))

    @property
    def is_as_is(self) -> bool:
        return self.kind is CompatibilityKind.AS_IS

    @property
    def is_after_migration(self) -> bool:
        return self.kind is CompatibilityKind.AFTER_MIGRATION

    @property
    def is_with_reconfigured_serializer(self) -> bool:
        return self.kind is CompatibilityKind.WITH_RECONFIGURED_SERIALIZER

    @property
    def is_incompatible(self) -> bool:
        return self.kind is CompatibilityKind.INCOMPATIBLE

    @property
    def reconfigured_serializer(self) -> TypeSerializer[T]:
        """The serializer to use instead of the judged one; an error for every other kind of compatibility result."""
        if self._reconfigured_serializer is None:
            raise ValueError(f"a compatibility result '{self.kind.label}' carries no reconfigured serializer")
        return self._reconfigured_serializer

    @property
    def plan(self) -> Plan:
        """What becomes of the bytes; an error if nothing does, because the compatibility result is *incompatible*."""
        if self.is_incompatible:
            raise ValueError(f"a compatibility result '{self.kind.label}' has no plan")
        return self._plan or (AS_IS if self.is_as_is else REWRITE)

    @property
    def merges_values(self) -> bool:
        """Whether different old values may become equal new ones."""
        return any(issue.merges_values for issue in self.issues)

    @property
    def only_merges_values(self) -> bool:
        """Whether the old values can be used, and the only change is that some of them become equal."""
        allowed = (FieldCompatibility.AS_IS, FieldCompatibility.RECONFIGURE)
        return (
            self.merges_values
            and not self.is_incompatible
            and all(issue.merges_values or issue.compatibility in allowed for issue in self.issues)
        )

    def with_compatibility(self, compatibility: FieldCompatibility) -> tuple[CompatibilityIssue, ...]:
        """The issues with that compatibility result, in path order of discovery."""
        return tuple(issue for issue in self.issues if issue.compatibility is compatibility)

    def with_unchanged(self, paths: Iterable[str]) -> TypeSerializerSchemaCompatibility[T]:
        """The same compatibility result, which also names the paths that did not change."""
        return evolve(self, unchanged=(*self.unchanged, *paths))

    def to_dict(self) -> dict[str, Any]:
        """The compatibility result as plain data, for tools; `snapshots.compatibility_report` gives the same as a
        tree.
        """
        return {
            "kind": self.kind.name,
            "unchanged": list(self.unchanged),
            "findings": [issue.to_dict() for issue in self.issues],
        }

    def __str__(self) -> str:
        lines = [self.kind.label]
        lines += [f"  {issue}" for issue in self.issues]
        return "\n".join(lines)


def names_apart(old_type: str, old_class: str, new_serializer: TypeSerializer[Any]) -> tuple[str, str]:
    """What to call the old and the new type in a issue: as people write them; if alike, with the serializers."""
    new_type = new_serializer.type_name
    if old_type != new_type:
        return old_type, new_type
    return f"{old_type} ({old_class})", f"{new_type} ({type(new_serializer).__name__})"


def another_serializer(old_type: str, old_class: str, new_serializer: TypeSerializer[Any]) -> CompatibilityIssue:
    """The issue that ``new_serializer`` stands where one of another class, ``old_class``, wrote the state."""
    old_name, new_name = names_apart(old_type, old_class, new_serializer)
    return CompatibilityIssue(
        path="",
        compatibility=FieldCompatibility.REJECT,
        rule="serializer-class",
        reason=f"the state holds {old_name}, and {new_name} cannot take it over",
        fix=(
            f"Keep {old_name}; or convert the values: ConvertingSerializer(<the new serializer>, {{<the old one>: "
            f"function}}); or let the snapshot of the new one adopt the old one"
        ),
    )
