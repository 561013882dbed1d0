"""What is stored about a serializer: its snapshot, never the serializer itself.

A snapshot has three tasks (Flink's contract): it writes and reads itself under a version, it restores a serializer that
reads the *old* bytes, and it resolves whether a *new* serializer is compatible. It describes one point in time: it does
not change when its serializer changes later.

`resolve_compatibility` has two steps:

1. The old snapshot resolves compatibility with the new serializer.
2. An old class cannot foresee its replacements. If step 1 returns *incompatible*, the snapshot of the new serializer
   may adopt the old one (Flink reversed its interface for the same reason, FLIP-263).

Two general forms resolve compatibility themselves: `SimpleTypeSerializerSnapshot` (the same class or incompatible) and
`snapshots.composite` (part by part). If two schemas must be compared, the rule is in `typeserializers.evolution`, and a
`RuledTypeSerializerSnapshot` finds it in `RULES` by the class of the snapshot. `RULES` holds the rules of this library
and is filled at import. Custom rules extend it:

    rules = CompatibilityRules(RULES)
    result = resolve_compatibility(old_snapshot, new_serializer, rules)

A context variable passes the rules on to the parts of a type, so that rules need no extra parameter.
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
    """Returns where a class was defined, as ``module:qualified.name``."""
    return f"{snapshot_class.__module__}:{snapshot_class.__qualname__}"


def defined_snapshot_classes() -> Mapping[str, type[TypeSerializerSnapshot[Any]]]:
    """Returns the snapshot classes of this process by `location_of`, without those local to a function."""
    return _defined


def define_snapshot_class(snapshot_class: type[TypeSerializerSnapshot[Any]]) -> None:
    """Registers the class under its location; a class that is local to a function has none."""
    if "<locals>" not in snapshot_class.__qualname__:
        _defined[location_of(snapshot_class)] = snapshot_class


@contextmanager
def without_defining_snapshot_classes() -> Iterator[None]:
    """Creates classes without registering them, such as a second copy from unpickling."""
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
        # A defined class is found by its name; nothing is imported for that.
        if _defines.get():
            define_snapshot_class(cls)

    @property
    @abstractmethod
    def current_version(self) -> int:
        """The version that `write_snapshot` writes; every earlier version must stay readable."""

    @abstractmethod
    def write_snapshot(self, out: DataOutputView) -> None:
        """Writes the content of the snapshot, without the envelope (name and version)."""

    @abstractmethod
    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        """Fills this snapshot from content written under ``read_version``.

        Raises:
            SnapshotFormatError: The version or the content is not supported.
        """

    def check_version(self, read_version: int) -> None:
        """Raises `SnapshotFormatError` unless the version is supported; `read_snapshot` calls it first."""
        if not 0 < read_version <= self.current_version:
            raise SnapshotFormatError(
                f"version {read_version} of {type(self).__name__} is not supported (newest supported: "
                f"{self.current_version}): a newer release wrote it, or the bytes are damaged"
            )

    @abstractmethod
    def restore_serializer(self) -> TypeSerializer[T]:
        """Returns a serializer that reads the bytes written when the snapshot was taken."""

    @abstractmethod
    def resolve_schema_compatibility(self, new_serializer: TypeSerializer[T]) -> TypeSerializerSchemaCompatibility[T]:
        """Resolves whether ``new_serializer`` can restore the state that this snapshot describes."""

    def adopt_schema(self, old_snapshot: TypeSerializerSnapshot[Any]) -> TypeSerializerSchemaCompatibility[T] | None:
        """Resolves compatibility from the side of the *new* serializer, if the old snapshot returned *incompatible*.

        Returns:
            The compatibility result, or None to keep the result of the old snapshot.
        """
        return None

    def merged_with(self, other: TypeSerializerSnapshot[Any]) -> TypeSerializerSnapshot[T] | None:
        """Returns a snapshot that reads the bytes of both, or None if there is none (the default).

        Implement it for a serializer that learns while it writes, or that has nested serializers: the subtasks of one
        operator may have learned different things.

        Args:
            other: A snapshot of the same class with other bytes.
        """
        return None


ResolveRule = Callable[[Any, Any], "TypeSerializerSchemaCompatibility[Any]"]
"""``rule(old_snapshot, new_serializer)`` returns the compatibility result."""

AdoptRule = Callable[[Any, Any], "TypeSerializerSchemaCompatibility[Any] | None"]
"""``rule(old_snapshot, new_serializer)`` returns the result of the new side, or None to keep that of the old side."""

Function = TypeVar("Function", bound=Callable[..., Any])


class CompatibilityRules:
    """Functions that resolve compatibility, by snapshot class.

    A class without a rule uses the rule of its base class. A table without a rule for a class uses ``base``.
    """

    def __init__(self, base: CompatibilityRules | None = None) -> None:
        self.base = base
        self._resolve_rules: dict[type[Any], ResolveRule] = {}
        self._adopt_rules: dict[type[Any], AdoptRule] = {}

    def resolves(self, *snapshot_classes: type[TypeSerializerSnapshot[Any]]) -> Callable[[Function], Function]:
        """Decorator: the rule that resolves compatibility for old snapshots of these classes."""

        def register(rule: Function) -> Function:
            self._resolve_rules.update(dict.fromkeys(snapshot_classes, rule))
            return rule

        return register

    def adopts(self, *snapshot_classes: type[TypeSerializerSnapshot[Any]]) -> Callable[[Function], Function]:
        """Decorator: the rule by which new serializers with snapshots of these classes adopt old snapshots."""

        def register(rule: Function) -> Function:
            self._adopt_rules.update(dict.fromkeys(snapshot_classes, rule))
            return rule

        return register

    def resolve(
        self, old_snapshot: TypeSerializerSnapshot[Any], new_serializer: TypeSerializer[Any]
    ) -> TypeSerializerSchemaCompatibility[Any]:
        """Resolves by the rule of the old snapshot's class; raises `TypeError` if it has none."""
        for snapshot_class in type(old_snapshot).__mro__:
            rule = self.resolve_rule_of(snapshot_class)
            if rule is not None:
                return rule(old_snapshot, new_serializer)
        raise TypeError(f"no compatibility rule for {type(old_snapshot).__name__}: define resolve_schema_compatibility")

    def adopt(
        self, old_snapshot: TypeSerializerSnapshot[Any], new_serializer: TypeSerializer[Any]
    ) -> TypeSerializerSchemaCompatibility[Any] | None:
        """Resolves from the new side: by the rule of its snapshot's class, else by the snapshot itself."""
        snapshot = new_serializer.snapshot_configuration()
        for snapshot_class in type(snapshot).__mro__:
            rule = self.adopt_rule_of(snapshot_class)
            if rule is not None:
                return rule(old_snapshot, new_serializer)
            if "adopt_schema" in snapshot_class.__dict__:
                break
        return snapshot.adopt_schema(old_snapshot)

    def resolve_rule_of(self, snapshot_class: type[Any]) -> ResolveRule | None:
        """Returns the resolve rule of exactly this class."""
        rule = self._resolve_rules.get(snapshot_class)
        return rule if rule is not None or self.base is None else self.base.resolve_rule_of(snapshot_class)

    def adopt_rule_of(self, snapshot_class: type[Any]) -> AdoptRule | None:
        """Returns the adopt rule of exactly this class."""
        rule = self._adopt_rules.get(snapshot_class)
        return rule if rule is not None or self.base is None else self.base.adopt_rule_of(snapshot_class)


class _LibraryRules(CompatibilityRules):
    """A singleton: unpickling returns the object of the process."""

    def __reduce__(self) -> str:
        return "RULES"


RULES: Final[CompatibilityRules] = _LibraryRules()
"""The rules of this library, complete once `typeserializers` is imported."""

_rules: ContextVar[CompatibilityRules] = ContextVar("compatibility_rules", default=RULES)


class RuledTypeSerializerSnapshot(TypeSerializerSnapshot[T]):
    """A snapshot whose rule is in the rules passed to `resolve_compatibility`, else in `RULES`."""

    def resolve_schema_compatibility(self, new_serializer: TypeSerializer[T]) -> TypeSerializerSchemaCompatibility[T]:
        return rules_in_use().resolve(self, new_serializer)


class SimpleTypeSerializerSnapshot(TypeSerializerSnapshot[T]):
    """The snapshot of a serializer without configuration: the same serializer class, or incompatible.

    Its content is empty. A subclass names its serializer:

        @register_snapshot("my.project.PointSerializerSnapshot")
        class PointSerializerSnapshot(SimpleTypeSerializerSnapshot[Point]):
            serializer_class = PointSerializer
    """

    VERSION: ClassVar[int] = 3
    """Flink's current version of this format; versions 1 and 2 contained names and are no longer written."""

    serializer_class: ClassVar[type[TypeSerializer[Any]] | None] = None
    """The class that `create_serializer` instantiates."""

    def create_serializer(self) -> TypeSerializer[T]:
        """Creates the serializer; override it if the serializer's constructor needs arguments."""
        if self.serializer_class is None:
            raise SnapshotFormatError(
                f"{type(self).__name__} has no serializer_class: set it, or override create_serializer"
            )
        return self.serializer_class()

    @property
    def current_version(self) -> int:
        return self.VERSION

    def write_snapshot(self, out: DataOutputView) -> None:
        """Writes nothing: the serializer has no configuration."""

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        if read_version == 2:
            # Version 2 repeated the name of the serializer class.
            source.read_utf()

    def restore_serializer(self) -> TypeSerializer[T]:
        return self.create_serializer()

    def resolve_schema_compatibility(self, new_serializer: TypeSerializer[T]) -> TypeSerializerSchemaCompatibility[T]:
        old_serializer = self.create_serializer()
        if type(new_serializer) is type(old_serializer):
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        return TypeSerializerSchemaCompatibility.incompatible(
            another_serializer(
                old_serializer.type_name, type(old_serializer).__name__, new_serializer, repr(old_serializer)
            )
        )


def rules_in_use() -> CompatibilityRules:
    """Returns the rules of the current `resolve_compatibility` call, else `RULES`."""
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
    """Resolves whether ``new_serializer`` can restore the state that ``old_snapshot`` describes.

    Args:
        old_snapshot: The stored snapshot; it resolves first.
        new_serializer: The serializer of the program; its snapshot may adopt an old one that returned *incompatible*.
        rules: The compatibility rules. Without them, a nested call uses those of the enclosing call, else `RULES`.
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
