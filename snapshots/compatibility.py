"""The result of comparing an old serializer snapshot with a new serializer, and the plan for the stored bytes.

There are four results, as in Flink: *compatible as is*, *compatible with reconfigured serializer*, *compatible after
migration* and *incompatible*. A result carries its issues: one per field path, each with a rule id, the reason and a
fix. The result of a value with several parts is the worst result of its parts (`worst_kind`). A lossy issue is a
migration that drops data.

Every result except *incompatible* also carries a plan, a small tree of data. The plan records which old part each new
part continues and by which rule, so that `migration` executes the decision and does not repeat it. A plan is relative
to one pair: the serializer that the old snapshot restores, and the new serializer. It names their parts by index or
name and holds neither of them. Three plans are defined here because any snapshot may need them:

    AsIsPlan      the new serializer reads the old bytes and writes the same bytes
    RewritePlan   the restored serializer reads the value, the new one writes it; the default of every other result
    PartsPlan     two composites of one class are converted part by part

The plans of the built-in rules are in `typeserializers.evolution.plans`. A plan with code of its own is a `CustomPlan`.

Paths: ``.name`` is a record field, ``[]`` a list element, ``{key}`` and ``{value}`` the parts of a map entry, ``[2]`` a
tuple field. The empty path is the root.
"""

from __future__ import annotations

import enum
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from attrs import evolve, field, frozen

if TYPE_CHECKING:
    from typeserializers.kernel.type_serializer import TypeSerializer


class Plan:
    """How to convert the bytes of one value."""

    def parts_of_plan(self) -> tuple[Plan, ...]:
        """Returns the plans inside this one; none by default."""
        return ()


@frozen
class AsIsPlan(Plan):
    """The bytes stay unchanged, and the new serializer reads them."""


@frozen
class RewritePlan(Plan):
    """The restored serializer reads the value, and the new serializer writes it."""


@frozen
class PartsPlan(Plan):
    """One plan for each nested serializer of two composites, in order."""

    parts: tuple[Plan, ...]

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return self.parts


class CustomPlan(Plan):
    """A plan with its own conversion code, for a snapshot whose rule no other plan expresses."""

    @abstractmethod
    def conversion(self, old: TypeSerializer[Any], new: TypeSerializer[Any], plans: Any) -> Any:
        """Creates the conversion of the pair.

        Args:
            old: The serializer that the old snapshot restores.
            new: The new serializer.
            plans: The `migration.conversion.ConversionScope` that creates conversions for plans inside this one.

        Returns:
            A `migration.conversion.Conversion`.
        """


AS_IS: Final = AsIsPlan()
REWRITE: Final = RewritePlan()


def all_plans(plan: Plan) -> Iterator[Plan]:
    """Yields the plan and every plan inside it."""
    yield plan
    for part in plan.parts_of_plan():
        yield from all_plans(part)


T = TypeVar("T")


class CompatibilityKind(enum.IntEnum):
    """The four compatibility results, ordered by severity: the maximum of several results is the worst."""

    AS_IS = 0
    WITH_RECONFIGURED_SERIALIZER = 1
    AFTER_MIGRATION = 2
    INCOMPATIBLE = 3

    @property
    def label(self) -> str:
        """The result as reports print it, such as ``compatible after migration``."""
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
        """The result for the whole value if this were its only issue."""
        return _KIND_OF_FIELD[self]


_KIND_OF_FIELD = {
    FieldCompatibility.AS_IS: CompatibilityKind.AS_IS,
    FieldCompatibility.RECONFIGURE: CompatibilityKind.WITH_RECONFIGURED_SERIALIZER,
    FieldCompatibility.MIGRATE: CompatibilityKind.AFTER_MIGRATION,
    FieldCompatibility.LOSSY: CompatibilityKind.AFTER_MIGRATION,
    FieldCompatibility.REJECT: CompatibilityKind.INCOMPATIBLE,
}


_FIELD_LABELS = {
    FieldCompatibility.AS_IS: "compatible as is",
    FieldCompatibility.RECONFIGURE: "reconfigured",
    FieldCompatibility.MIGRATE: "migrated",
    FieldCompatibility.LOSSY: "removed (data loss)",
    FieldCompatibility.REJECT: "incompatible",
}

_CHANGES = {
    "renamed": "renamed",
    "added": "added",
    "widened": "widened",
    "promoted": "widened",
    "converted": "converted",
}
"""What reports print for a compatible issue, by the last word of its rule id."""


@frozen
class CompatibilityIssue:
    """What happens to the data at one path.

    Attributes:
        path: The field path; empty for the whole value.
        compatibility: What happens to the data there.
        rule: The id of the rule that decided, such as ``field-renamed``.
        reason: Why, in one sentence without a full stop.
        fix: What the user can do; empty if nothing is needed.
    """

    path: str
    compatibility: FieldCompatibility
    rule: str
    reason: str
    fix: str = ""
    merges_values: bool = False
    """Whether different old values may become equal new values, so that map keys may collide."""

    @property
    def change(self) -> str:
        """What reports print for this issue, such as ``renamed``, ``added`` or ``removed (data loss)``."""
        if self.compatibility in (FieldCompatibility.REJECT, FieldCompatibility.LOSSY):
            return _FIELD_LABELS[self.compatibility]
        return _CHANGES.get(self.rule.rpartition("-")[2], _FIELD_LABELS[self.compatibility])

    def below(self, prefix: str) -> CompatibilityIssue:
        """Returns the issue with ``prefix`` in front of its path."""
        return evolve(self, path=prefix + self.path)

    def to_dict(self) -> dict[str, str]:
        """Returns the issue as plain data for tools; `from_dict` reads it."""
        return {
            "path": self.path,
            "compatibility": self.compatibility.name,
            "rule": self.rule,
            "reason": self.reason,
            "fix": self.fix,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, str]) -> CompatibilityIssue:
        """Returns the issue from the data that `to_dict` returned."""
        compatibility = FieldCompatibility[plain["compatibility"]]
        return cls(plain["path"], compatibility, plain["rule"], plain["reason"], plain["fix"])

    def __str__(self) -> str:
        text = f"{self.path or '(whole value)'}: {self.change} [{self.rule}] {self.reason}"
        return f"{text}. {self.fix}" if self.fix else text


def worst_kind(kinds: Iterable[CompatibilityKind]) -> CompatibilityKind:
    """Returns the worst: *incompatible* > *after migration* > *with reconfigured serializer* > *as is*."""
    return max(kinds, default=CompatibilityKind.AS_IS)


@frozen
class TypeSerializerSchemaCompatibility(Generic[T]):
    """A compatibility result with its issues and its plan.

    Only *compatible with reconfigured serializer* carries a serializer. That one reads the old bytes, and the job uses
    it instead of the new serializer.
    """

    kind: CompatibilityKind
    issues: tuple[CompatibilityIssue, ...] = ()
    _reconfigured_serializer: TypeSerializer[T] | None = None
    unchanged: tuple[str, ...] = field(default=(), kw_only=True)
    """The paths of record fields with the same name, position and type as before."""

    _plan: Plan | None = field(default=None, kw_only=True, eq=False)

    def __attrs_post_init__(self) -> None:
        carries = self._reconfigured_serializer is not None
        if carries != (self.kind is CompatibilityKind.WITH_RECONFIGURED_SERIALIZER):
            raise ValueError(
                f"'{self.kind.label}' was created {'with' if carries else 'without'} a reconfigured serializer: "
                f"only 'compatible with reconfigured serializer' has one, and always"
            )

    @classmethod
    def compatible_as_is(
        cls, issues: Iterable[CompatibilityIssue] = (), *, plan: Plan | None = None
    ) -> TypeSerializerSchemaCompatibility[T]:
        """The new serializer reads the old bytes and writes the same bytes."""
        return cls(CompatibilityKind.AS_IS, tuple(issues), plan=plan)

    @classmethod
    def compatible_after_migration(
        cls, issues: Iterable[CompatibilityIssue] = (), *, plan: Plan | None = None
    ) -> TypeSerializerSchemaCompatibility[T]:
        """The old bytes must be converted before the new serializer reads them.

        Without a plan, the old serializer reads each value and the new serializer writes it.
        """
        return cls(CompatibilityKind.AFTER_MIGRATION, tuple(issues), plan=plan)

    @classmethod
    def compatible_with_reconfigured_serializer(
        cls, serializer: TypeSerializer[T], issues: Iterable[CompatibilityIssue] = (), *, plan: Plan | None = None
    ) -> TypeSerializerSchemaCompatibility[T]:
        """``serializer``, a reconfigured form of the new serializer, reads the old bytes and replaces the new one.

        The plan converts to the new serializer as passed in. It is used where an enclosing type needs migration.
        """
        return cls(CompatibilityKind.WITH_RECONFIGURED_SERIALIZER, tuple(issues), serializer, plan=plan)

    @classmethod
    def incompatible(cls, *issues: CompatibilityIssue) -> TypeSerializerSchemaCompatibility[T]:
        """The new serializer cannot read the old state; each issue says where, why and how to fix it."""
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
        """The serializer to use instead of the new one; raises `ValueError` for every other kind of result."""
        if self._reconfigured_serializer is None:
            raise ValueError(f"the result '{self.kind.label}' has no reconfigured serializer: check `kind` first")
        return self._reconfigured_serializer

    @property
    def plan(self) -> Plan:
        """How to convert the bytes; raises `ValueError` if the result is *incompatible*."""
        if self.is_incompatible:
            raise ValueError(f"the result '{self.kind.label}' has no plan: check `kind` first")
        return self._plan or (AS_IS if self.is_as_is else REWRITE)

    @property
    def merges_values(self) -> bool:
        """Whether different old values may become equal new values."""
        return any(issue.merges_values for issue in self.issues)

    @property
    def only_merges_values(self) -> bool:
        """Whether the only change is that some old values become equal."""
        allowed = (FieldCompatibility.AS_IS, FieldCompatibility.RECONFIGURE)
        return (
            self.merges_values
            and not self.is_incompatible
            and all(issue.merges_values or issue.compatibility in allowed for issue in self.issues)
        )

    def with_compatibility(self, compatibility: FieldCompatibility) -> tuple[CompatibilityIssue, ...]:
        """Returns the issues of that kind, in order of discovery."""
        return tuple(issue for issue in self.issues if issue.compatibility is compatibility)

    def with_unchanged(self, paths: Iterable[str]) -> TypeSerializerSchemaCompatibility[T]:
        """Returns the result with more unchanged paths."""
        return evolve(self, unchanged=(*self.unchanged, *paths))

    def to_dict(self) -> dict[str, Any]:
        """Returns the result as plain data for tools; `snapshots.compatibility_report` returns it as a tree."""
        return {
            "kind": self.kind.name,
            "unchanged": list(self.unchanged),
            "issues": [issue.to_dict() for issue in self.issues],
        }

    def __str__(self) -> str:
        lines = [self.kind.label]
        lines += [f"  {issue}" for issue in self.issues]
        return "\n".join(lines)


def names_apart(old_type: str, old_class: str, new_serializer: TypeSerializer[Any]) -> tuple[str, str]:
    """Returns the old and the new type as people write them; equal names get the serializer class in addition."""
    new_type = new_serializer.type_name
    if old_type != new_type:
        return old_type, new_type
    return f"{old_type} ({old_class})", f"{new_type} ({type(new_serializer).__name__})"


def another_serializer(
    old_type: str, old_class: str, new_serializer: TypeSerializer[Any], old_code: str = ""
) -> CompatibilityIssue:
    """Returns the issue for state that a serializer of another class, ``old_class``, wrote.

    The fix is a type to paste in place of the new one, with names of `typing` and `typeserializers`. ``old_code`` makes
    the old serializer, by default from its type.
    """
    old_name, new_name = names_apart(old_type, old_class, new_serializer)
    return CompatibilityIssue(
        path="",
        compatibility=FieldCompatibility.REJECT,
        rule="serializer-class",
        reason=f"the state holds {old_name}, and {new_name} cannot read it",
        fix=f"Keep {old_name}; or {converting_type(old_code or f'serializer_for({old_type})', new_serializer)}",
    )


def converting_type(old_code: str, new_serializer: TypeSerializer[Any]) -> str:
    """Returns advice to convert old values, with a type to paste in place of the new one; see `another_serializer`."""
    new_code = _RECORD_SERIALIZER.sub("serializer_for", repr(new_serializer))
    hint = new_serializer.type_name if _HINT.fullmatch(new_serializer.type_name) else "Any"
    return (
        f"write a function from the old value to the new one and the type "
        f"Annotated[{hint}, ConvertingSerializer({new_code}, {{{old_code}: function}})]"
    )


_RECORD_SERIALIZER: Final = re.compile(r"\b(Attrs|Record)Serializer\b")
_HINT: Final = re.compile(r"[\w.]+([\w.\[\], |]*[\w.\]])?", re.ASCII)
"""A type as people write it, such as ``dict[str, int | None]``."""
