"""What is persisted about a serializer: its snapshot, never the serializer itself.

A snapshot has three duties (Flink's contract): to write and read itself under a version, to rebuild a serializer that
reads the *old* bytes, and to say whether a *new* serializer may take over. It is a point-in-time object: it must not
change when the serializer it was taken from goes on living.

Who judges: the old snapshot judges the new serializer. An old class cannot foresee its replacements, so where it
finds the new serializer incompatible, the new serializer's own snapshot is asked whether it adopts the old one
(Flink's FLIP-263 turned its interface round for this reason). `resolve_compatibility` runs both steps.

A snapshot that needs only itself to judge does it itself, as the two general forms do: `SimpleTypeSerializerSnapshot`,
the same class or nothing, and `snapshots.composite`, part by part. Where two schemas have to be compared, the rule is
in a room above those of the snapshots (`typeserializers.evolution`), and is looked up by the class of the snapshot: a
`RuledTypeSerializerSnapshot` asks `RULES`. That table has the rules of this library; it is filled while their modules
are imported, and by nothing else. Rules of one's own stand in a table on top of it, which is passed:

    rules = CompatibilityRules(RULES)
    compatibility result = resolve_compatibility(old_snapshot, new_serializer, rules)

It travels to the parts of a type by the context of the call, so that who judges parts need not know of it.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from snapshots.compatibility import TypeSerializerSchemaCompatibility, another_serializer
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.errors import SnapshotFormatError

if TYPE_CHECKING:
    from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")

_defined: dict[str, type[TypeSerializerSnapshot[Any]]] = {}
_defines: ContextVar[bool] = ContextVar("defines_snapshot_classes", default=True)


def location_of(snapshot_class: type[object]) -> str:
    """Where a class was defined, as ``module:qualified.name``."""
    return f"{snapshot_class.__module__}:{snapshot_class.__qualname__}"


def defined_snapshot_classes() -> Mapping[str, type[TypeSerializerSnapshot[Any]]]:
    """The snapshot classes of this process by `location_of`, without those local to a function."""
    return _defined


def define_snapshot_class(snapshot_class: type[TypeSerializerSnapshot[Any]]) -> None:
    """Makes the class the one of its location; one that is local to a function has none."""
    if "<locals>" not in snapshot_class.__qualname__:
        _defined[location_of(snapshot_class)] = snapshot_class


@contextmanager
def without_defining_snapshot_classes() -> Iterator[None]:
    """Lets classes be made that may be dropped again, as by unpickling one that the process has already."""
    token = _defines.set(False)
    try:
        yield
    finally:
        _defines.reset(token)


class TypeSerializerSnapshot(ABC, Generic[T]):
    """A versioned, point-in-time description of a serializer's configuration and written schema.

    A subclass must be constructible without arguments; `read_snapshot` then fills it.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A class that was defined can be found again by its name; nothing is ever imported for that.
        if _defines.get():
            define_snapshot_class(cls)

    @property
    @abstractmethod
    def current_version(self) -> int:
        """The version that `write_snapshot` writes; every earlier version must stay readable."""

    @abstractmethod
    def write_snapshot(self, out: DataOutputView) -> None:
        """Writes the content of the snapshot (the envelope with name and version is not its concern)."""

    @abstractmethod
    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        """Fills this snapshot from content written under ``read_version``.

        Raises `SnapshotFormatError` for a version or content it does not know.
        """

    def check_version(self, read_version: int) -> None:
        """Raises `SnapshotFormatError` unless content of that version can be read; `read_snapshot` begins with it."""
        if not 0 < read_version <= self.current_version:
            raise SnapshotFormatError(
                f"version {read_version} of {type(self).__name__} is not known here (newest known: "
                f"{self.current_version}): it was written by a newer release, or the bytes are damaged"
            )

    @abstractmethod
    def restore_serializer(self) -> TypeSerializer[T]:
        """A serializer that reads the bytes written when the snapshot was taken."""

    @abstractmethod
    def resolve_schema_compatibility(self, new_serializer: TypeSerializer[T]) -> TypeSerializerSchemaCompatibility[T]:
        """The compatibility result on ``new_serializer`` taking over the state that this snapshot describes."""

    def adopt_schema(self, old_snapshot: TypeSerializerSnapshot[Any]) -> TypeSerializerSchemaCompatibility[T] | None:
        """Asked of the *new* serializer's snapshot when the old one rejects: the compatibility result, or None for no
        opinion.
        """
        return None

    def merged_with(self, other: TypeSerializerSnapshot[Any]) -> TypeSerializerSnapshot[T] | None:
        """The snapshot under which the bytes of both mean what they did; None, as here, if there is none.

        ``other`` is of the same class and is written differently: the same serializer has learned other things in
        another subtask. To be implemented by the snapshot of a serializer that learns while it writes, or that has
        serializers inside; `snapshots.composite` is what asks.
        """
        return None


Judge = Callable[[Any, Any], "TypeSerializerSchemaCompatibility[Any]"]
"""``judge(old_snapshot, new_serializer)``: the compatibility result."""

Adopt = Callable[[Any, Any], "TypeSerializerSchemaCompatibility[Any] | None"]
"""``adopt(old_snapshot, new_serializer)``: the compatibility result of the new side, or None for no opinion."""

Function = TypeVar("Function", bound=Callable[..., Any])


class CompatibilityRules:
    """Which function judges for the old snapshots of a class, and which adopts for the new ones of a class.

    A class has the rules of its base classes if it has none of its own; those of ``base`` stand behind these.
    """

    def __init__(self, base: CompatibilityRules | None = None) -> None:
        self.base = base
        self._judges: dict[type[Any], Judge] = {}
        self._adopts: dict[type[Any], Adopt] = {}

    def judges(self, *snapshot_classes: type[TypeSerializerSnapshot[Any]]) -> Callable[[Function], Function]:
        """Decorator: the rule by which old snapshots of these classes judge."""

        def register(rule: Function) -> Function:
            self._judges.update(dict.fromkeys(snapshot_classes, rule))
            return rule

        return register

    def adopts(self, *snapshot_classes: type[TypeSerializerSnapshot[Any]]) -> Callable[[Function], Function]:
        """Decorator: the rule by which serializers with snapshots of these classes adopt what rejected them."""

        def register(rule: Function) -> Function:
            self._adopts.update(dict.fromkeys(snapshot_classes, rule))
            return rule

        return register

    def judge(
        self, old_snapshot: TypeSerializerSnapshot[Any], new_serializer: TypeSerializer[Any]
    ) -> TypeSerializerSchemaCompatibility[Any]:
        """The compatibility result by the rule of the old snapshot's class; raises `TypeError` if it has none."""
        for snapshot_class in type(old_snapshot).__mro__:
            rule = self.judge_of(snapshot_class)
            if rule is not None:
                return rule(old_snapshot, new_serializer)
        raise TypeError(f"no rule judges for {type(old_snapshot).__name__}: define resolve_schema_compatibility")

    def adopt(
        self, old_snapshot: TypeSerializerSnapshot[Any], new_serializer: TypeSerializer[Any]
    ) -> TypeSerializerSchemaCompatibility[Any] | None:
        """What the new side says: by the rule of its snapshot's class, else by the snapshot itself."""
        snapshot = new_serializer.snapshot_configuration()
        for snapshot_class in type(snapshot).__mro__:
            rule = self.adopt_of(snapshot_class)
            if rule is not None:
                return rule(old_snapshot, new_serializer)
            if "adopt_schema" in snapshot_class.__dict__:
                break
        return snapshot.adopt_schema(old_snapshot)

    def judge_of(self, snapshot_class: type[Any]) -> Judge | None:
        """The rule of exactly this class, by which its old snapshots judge."""
        rule = self._judges.get(snapshot_class)
        return rule if rule is not None or self.base is None else self.base.judge_of(snapshot_class)

    def adopt_of(self, snapshot_class: type[Any]) -> Adopt | None:
        """The rule of exactly this class, by which its serializers adopt."""
        rule = self._adopts.get(snapshot_class)
        return rule if rule is not None or self.base is None else self.base.adopt_of(snapshot_class)


class _LibraryRules(CompatibilityRules):
    """The one object of its kind: in another process it is the one of that process."""

    def __reduce__(self) -> str:
        return "RULES"


RULES: Final[CompatibilityRules] = _LibraryRules()
"""The rules of this library, complete once `typeserializers` is imported."""

_rules: ContextVar[CompatibilityRules] = ContextVar("verdict_rules", default=RULES)


class RuledTypeSerializerSnapshot(TypeSerializerSnapshot[T]):
    """A snapshot for which a rule judges: of the rules that `resolve_compatibility` was passed, else of `RULES`."""

    def resolve_schema_compatibility(self, new_serializer: TypeSerializer[T]) -> TypeSerializerSchemaCompatibility[T]:
        return rules_in_use().judge(self, new_serializer)


class SimpleTypeSerializerSnapshot(TypeSerializerSnapshot[T]):
    """The snapshot of a serializer without configuration: the same serializer class, or incompatible.

    Its content is empty. A subclass names its serializer:

        @register_snapshot("my.project.PointSerializerSnapshot")
        class PointSerializerSnapshot(SimpleTypeSerializerSnapshot[Point]):
            serializer_class = PointSerializer
    """

    VERSION: ClassVar[int] = 3
    """Flink's current version of this format; versions 1 and 2 held names and are not written any more."""

    serializer_class: ClassVar[type[TypeSerializer[Any]] | None] = None
    """What `create_serializer` makes an instance of."""

    def create_serializer(self) -> TypeSerializer[T]:
        """A new instance of the serializer; to be overridden where its class alone does not say how to make one."""
        if self.serializer_class is None:
            raise SnapshotFormatError(
                f"{type(self).__name__} is the snapshot of no serializer: it has no serializer_class"
            )
        return self.serializer_class()

    @property
    def current_version(self) -> int:
        return self.VERSION

    def write_snapshot(self, out: DataOutputView) -> None:
        """There is nothing to write."""

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        if read_version == 2:
            # Version 2 repeated the name of the serializer class, which the envelope implies.
            source.read_utf()

    def restore_serializer(self) -> TypeSerializer[T]:
        return self.create_serializer()

    def resolve_schema_compatibility(self, new_serializer: TypeSerializer[T]) -> TypeSerializerSchemaCompatibility[T]:
        old_serializer = self.create_serializer()
        if type(new_serializer) is type(old_serializer):
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        return TypeSerializerSchemaCompatibility.incompatible(
            another_serializer(old_serializer.type_name, type(old_serializer).__name__, new_serializer)
        )


def rules_in_use() -> CompatibilityRules:
    """The rules by which the compatibility result is taken that is being taken just now."""
    return _rules.get()


_Resolve = TypeVar("_Resolve", bound=Callable[..., "TypeSerializerSchemaCompatibility[Any]"])

_results: ContextVar[dict[Any, Any] | None] = ContextVar("compatibility_results", default=None)
"""What `resolved_once` has computed since the outermost call."""


def resolved_once(resolve: _Resolve) -> _Resolve:
    """Decorator: resolves each pair of an old snapshot and a new serializer once in an outermost call.

    Several rules may ask about the same part. If each of them did so again, the work would double at every level of a
    nested type.
    """

    @functools.wraps(resolve)
    def resolve_or_look_up(old_snapshot: Any, new_serializer: Any) -> TypeSerializerSchemaCompatibility[Any]:
        results = _results.get()
        if results is None:
            token = _results.set({})
            try:
                return resolve_or_look_up(old_snapshot, new_serializer)
            finally:
                _results.reset(token)
        key = resolve, id(rules_in_use()), id(old_snapshot), id(new_serializer)
        if key not in results:
            # The entry keeps both alive, so that no other object gets their ids.
            results[key] = resolve(old_snapshot, new_serializer), old_snapshot, new_serializer
        result: TypeSerializerSchemaCompatibility[Any] = results[key][0]
        return result

    return resolve_or_look_up  # type: ignore[return-value]


def resolve_compatibility(
    old_snapshot: TypeSerializerSnapshot[Any],
    new_serializer: TypeSerializer[T],
    rules: CompatibilityRules | None = None,
) -> TypeSerializerSchemaCompatibility[T]:
    """The compatibility result on ``new_serializer`` over ``old_snapshot``: the old one judges, then the new one may
    adopt.

    Without ``rules``, by those of the compatibility result around it, and else by `RULES`.
    """
    if rules is not None:
        token = _rules.set(rules)
        try:
            return _resolve_compatibility(old_snapshot, new_serializer)
        finally:
            _rules.reset(token)
    return _resolve_compatibility(old_snapshot, new_serializer)


@resolved_once
def _resolve_compatibility(
    old_snapshot: TypeSerializerSnapshot[Any], new_serializer: TypeSerializer[T]
) -> TypeSerializerSchemaCompatibility[T]:
    compatibility = old_snapshot.resolve_schema_compatibility(new_serializer)
    if not compatibility.is_incompatible:
        return compatibility
    return rules_in_use().adopt(old_snapshot, new_serializer) or compatibility
