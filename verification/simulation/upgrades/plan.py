"""Chains of versions as data, made by a seed: the types of a state, and the changes of each version."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from attrs import evolve, frozen

from verification.simulation.upgrades.types import (
    REQUIRED,
    EnumType,
    Field,
    ListOf,
    MapOf,
    OptionalOf,
    Record,
    Scalar,
    TupleOf,
    Type,
    UnionOf,
    format_type,
    parts,
    random_value,
    with_parts,
)

__all__ = ["UpgradePlan", "Version"]

VERSIONS: Final = 5
_WIDER: Final = {
    "int32": ("int", "float", "decimal"),
    "int": ("float", "decimal"),
    "str": ("bytes",),
    "bytes": ("str",),
}
_UNION_MEMBERS: Final = ("int", "str", "float", "bytes")
_NAMES: Final = ("late", "minutes", "carrier", "legs", "worst")


@frozen
class Version:
    """The types of one version's states: records as values, and the user keys of a map state."""

    record: Record
    key: Type
    has_ttl: bool = False


@frozen
class UpgradePlan:
    """A chain of versions; ``seed`` decides the values written under each version."""

    seed: int
    versions: tuple[Version, ...]

    @classmethod
    def of_seed(cls, seed: int) -> UpgradePlan:
        """Return the chain of a seed. After a version that must be rejected, others follow the version before it."""
        return cls(seed, tuple(_Drawn(Random(f"upgrade-{seed}")).versions()))

    def description(self) -> str:
        """The plan as text, one line per version."""
        return "\n".join(
            f"  version {number}: {format_type(one.record)}; keys {format_type(one.key)}" + "; ttl" * one.has_ttl
            for number, one in enumerate(self.versions)
        )

    def shorter(self) -> Iterator[UpgradePlan]:
        """Return chains with one version less, with one field less in all versions, or without a time-to-live."""
        for index in range(len(self.versions)):
            if len(self.versions) > 1:
                yield evolve(self, versions=self.versions[:index] + self.versions[index + 1 :])
        for identity in sorted({one for version in self.versions for one in _identities(version.record)}):
            versions = [evolve(one, record=_without(one.record, identity)) for one in self.versions]
            if all(version.record.fields for version in versions):
                yield evolve(self, versions=tuple(versions))
        if any(one.has_ttl for one in self.versions):
            yield evolve(self, versions=tuple(evolve(one, has_ttl=False) for one in self.versions))
        if any(one.key != Scalar("str") for one in self.versions):
            yield evolve(self, versions=tuple(evolve(one, key=Scalar("str")) for one in self.versions))


def _identities(given: Type) -> Iterator[int]:
    if isinstance(given, Record):
        yield from (one.identity for one in given.fields)
    for part in parts(given):
        yield from _identities(part)


def _without(given: Record, identity: int) -> Record:
    def reduced(kind: Type) -> Type:
        if isinstance(kind, Record):
            kept = tuple(one for one in kind.fields if one.identity != identity)
            kind = evolve(kind, fields=kept or kind.fields)
        inner = list(parts(kind))
        return with_parts(kind, [reduced(part) for part in inner]) if inner else kind

    made = reduced(given)
    assert isinstance(made, Record)
    return made


class _Drawn:
    """Draws the versions of one chain."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._count = 0

    def versions(self) -> Iterator[Version]:
        # Imported here, because the model imports the types of this package, and the plan uses the model.
        random = self._random
        key: Type = Scalar("str") if random.random() < 0.4 else self._enum()
        current = Version(self._record(0), key, random.random() < 0.3)
        yield current
        for _ in range(VERSIONS - 1):
            changed = current.record
            for _ in range(random.choice((1, 1, 2))):
                changed = self._changed_record(changed, 0)
            key = current.key
            if isinstance(key, EnumType) and random.random() < 0.4:
                key = self._changed_enum(key)
            has_ttl = current.has_ttl != (random.random() < 0.2)
            candidate = Version(changed, key, has_ttl)
            yield candidate
            current = candidate if is_accepted(current, candidate) else current

    def _number(self) -> int:
        self._count += 1
        return self._count

    def _type(self, depth: int, *, is_optional: bool = False) -> Type:
        random = self._random
        kind = random.random()
        if depth >= 2 or kind < 0.4:
            return Scalar(random.choice(("int32", "int", "int", "float", "str", "str", "bytes", "bool", "decimal")))
        if kind < 0.5:
            return self._enum()
        if kind < 0.58 and not is_optional:
            return OptionalOf(self._type(depth + 1, is_optional=True))
        if kind < 0.66:
            return ListOf(self._type(depth + 1))
        if kind < 0.76:
            key: Type = random.choice((Scalar("str"), Scalar("int"), self._enum()))
            return MapOf(key, self._type(depth + 1))
        if kind < 0.84:
            return TupleOf((self._type(depth + 1), self._type(depth + 1)))
        if kind < 0.9 and not is_optional:
            return UnionOf(tuple(map(Scalar, random.sample(_UNION_MEMBERS, 2))))
        return self._record(depth + 1)

    def _enum(self) -> EnumType:
        number = self._number()
        count = self._random.choice((2, 3, 4))
        return EnumType(f"Color{number}", tuple((f"C{index}", index) for index in range(count)))

    def _record(self, depth: int) -> Record:
        count = self._random.choice((1, 2, 3)) if depth else self._random.choice((2, 3, 4))
        names = self._random.sample(_NAMES, count)
        fields = tuple(self._field(name, depth) for name in names)
        return Record(f"Record{self._number()}", fields, family=self._random.choice(("attrs", "dataclass")))

    def _field(self, name: str, depth: int, *, is_required: bool = False) -> Field:
        kind = self._type(depth + 1)
        default = REQUIRED if is_required else random_value(self._random, kind)
        return Field(name, kind, self._number(), default)

    def _changed(self, given: Type, depth: int, *, is_optional: bool = False) -> Type:
        random = self._random
        if isinstance(given, Record):
            return self._changed_record(given, depth)
        if isinstance(given, EnumType):
            return self._changed_enum(given)
        if isinstance(given, UnionOf):
            return self._changed_union(given)
        if isinstance(given, OptionalOf):
            if random.random() < 0.2:
                return given.item
            return OptionalOf(self._changed(given.item, depth, is_optional=True))
        if isinstance(given, Scalar):
            return self._changed_scalar(given, is_optional)
        inner = list(parts(given))
        index = random.randrange(len(inner))
        if isinstance(given, MapOf) and not isinstance(given.key, EnumType):
            index = 1
        if isinstance(given, TupleOf) and random.random() < 0.1:
            return TupleOf((*given.items, Scalar("int")))
        inner[index] = self._changed(inner[index], depth + 1)
        return with_parts(given, inner)

    def _changed_scalar(self, given: Scalar, is_optional: bool) -> Type:
        random = self._random
        choice = random.random()
        if choice < 0.5 and given.kind in _WIDER:
            return Scalar(random.choice(_WIDER[given.kind]))
        if choice < 0.7 and not is_optional:
            return OptionalOf(given)
        if choice < 0.8 and not is_optional and given.kind in _UNION_MEMBERS:
            other = random.choice([one for one in _UNION_MEMBERS if one != given.kind])
            return UnionOf((Scalar(other), given))
        if choice < 0.85:
            return Scalar(random.choice(("int32", "bool", "str", "float")))
        return given

    def _changed_union(self, given: UnionOf) -> UnionOf:
        random = self._random
        more = [one for one in _UNION_MEMBERS if Scalar(one) not in given.members]
        choice = random.random()
        if choice < 0.4 and more:
            return UnionOf((Scalar(random.choice(more)), *given.members))
        if choice < 0.6 and len(given.members) > 2:
            return UnionOf(given.members[1:])
        return UnionOf(given.members[::-1])

    def _changed_enum(self, given: EnumType) -> EnumType:
        random = self._random
        constants = list(given.constants)
        choice = random.random()
        if choice < 0.4:
            constants.insert(random.randrange(len(constants) + 1), (f"C{self._number()}new", 100 + self._number()))
        elif choice < 0.6:
            random.shuffle(constants)
        elif choice < 0.7 and len(constants) > 1:
            constants.pop(random.randrange(len(constants)))
        elif len(constants) > 1:
            index = random.randrange(1, len(constants))
            constants[index] = constants[index][0], constants[0][1]
        return EnumType(given.name, tuple(constants))

    def _changed_record(self, given: Record, depth: int) -> Record:
        random = self._random
        fields = list(given.fields)
        index = random.randrange(len(fields))
        one = fields[index]
        free = [name for name in _NAMES if name not in {it.name for it in fields}]
        choice = random.random()
        if choice < 0.35:
            kind = self._changed(one.type, depth + 1)
            default = one.default if kind == one.type or one.default is REQUIRED else random_value(random, kind)
            fields[index] = evolve(one, type=kind, default=default)
        elif choice < 0.5 and free:
            fields[index] = evolve(one, name=random.choice(free), former=(one.name, *one.former)[:2])
        elif choice < 0.6 and free:
            # Another field takes the old name of one that is renamed, in one step or later.
            fields[index] = evolve(one, name=random.choice(free), former=(one.name,))
            fields.append(self._field(one.name, depth))
        elif choice < 0.7 and free:
            old = [name for it in fields for name in it.former if name in free]
            fields.append(self._field(random.choice(old or free), depth, is_required=random.random() < 0.1))
        elif choice < 0.8 and len(fields) > 1:
            fields.pop(index)
        elif choice < 0.85:
            random.shuffle(fields)
        elif choice < 0.9:
            name = f"Record{self._number()}"
            former = (given.name, *given.former) if random.random() < 0.8 else ()
            return evolve(given, name=name, former=former)
        elif choice < 0.95:
            return evolve(given, family="attrs" if given.family == "dataclass" else "dataclass")
        elif free:
            fields[index] = evolve(one, name=random.choice(free), former=())
        return evolve(given, fields=tuple(_with_own_former_names(fields, index)))


def _with_own_former_names(fields: list[Field], latest: int) -> Iterator[Field]:
    """Return the fields without former names that the latest field also claims."""
    claimed = fields[latest].former if latest < len(fields) else ()
    for index, one in enumerate(fields):
        yield one if index == latest else evolve(one, former=tuple(name for name in one.former if name not in claimed))


def is_accepted(old: Version, new: Version) -> bool:
    """Return whether, by the model, the new version can restore the state of the old one."""
    from verification.simulation.upgrades.model import Rejected, conversion

    try:
        conversion(old.record, new.record)
        conversion(old.key, new.key)
    except Rejected:
        return False
    return True
