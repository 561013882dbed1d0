"""The current key, shared by a backend and all its state handles.

It is a plain object with plain attributes, because it is written once per record and read at every access. ``key`` is
the entry key: the key itself where equal keys have equal bytes, else its bytes.

A state with namespaces has its own context, which adds the namespace that was set on its handle.

A key is set by a *key setter* (`compile_key_setter`), a function generated for one context and its follow-ups. It needs
no look-ups. A loop over records compiles it once, before the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from snapshots.errors import SerializationError, format_value
from statebackend.state.errors import NoCurrentKeyError, StateBackendError
from statebackend.state.value_forms import compile_exact
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VOID_NAMESPACE, VoidNamespaceSerializer

KeySetter = Callable[[Any, int], None]
"""``set_key(key, key_group)`` makes a key current."""


class _NoKey:
    """Marks 'no current key'. It is unhashable, so that a cache look-up with it fails at once."""

    __slots__ = ()

    def __hash__(self) -> int:
        raise NoCurrentKeyError(
            "keyed state was accessed without a current key: use it in process_element, not in open() or close(); "
            "in process_broadcast_element, use context.apply_to_keyed_state(...)"
        )

    def __repr__(self) -> str:
        return "NO_KEY"


NO_KEY: Final = _NoKey()


class _NoNamespace:
    """Marks 'no current namespace', and is unhashable like `_NoKey`."""

    __slots__ = ()

    def __hash__(self) -> int:
        raise StateBackendError(
            "state with namespaces was accessed without a current namespace: call set_current_namespace first"
        )

    def __repr__(self) -> str:
        return "NO_NAMESPACE"


NO_NAMESPACE: Final = _NoNamespace()


def has_namespaces(namespace_serializer: TypeSerializer[Any]) -> bool:
    """Whether state with this namespace serializer can have more than one namespace."""
    return not isinstance(namespace_serializer, VoidNamespaceSerializer)


class KeyContext:
    """The current key and its key group; the context of all states without namespaces."""

    __slots__ = ("key", "key_group")

    def __init__(self) -> None:
        self.key: Any = NO_KEY
        self.key_group = -1

    @property
    def has_key(self) -> bool:
        """Whether a key is current."""
        return self.key is not NO_KEY

    @property
    def namespace(self) -> Any:
        """The void namespace."""
        return VOID_NAMESPACE

    def entry_key(self, key: Any) -> Any:
        """The key itself."""
        return key

    def entry_namespace(self, namespace: Any) -> Any:
        """The namespace itself; raises `SerializationError` if it is not `VOID_NAMESPACE`."""
        if namespace is not VOID_NAMESPACE:
            raise SerializationError(
                "the namespace", (f"{format_value(namespace)}: this state was registered without namespaces",)
            )
        return namespace

    def enter(self, entry_namespace: Any) -> None:
        """Do nothing, because there is only one namespace."""

    def leave(self) -> None:
        """Clear the current key."""
        self.key = NO_KEY
        self.key_group = -1


def compile_key_setter(
    context: KeyContext,
    key_serializer: TypeSerializer[Any],
    follow_ups: Iterable[Callable[[], object]],
    also: Any = None,
) -> KeySetter:
    """Return a function that makes a key current and then calls the follow-ups, which read it.

    It also sets the attributes ``key`` (never encoded) and ``key_group`` of ``also``. If keys are represented by their
    bytes, it raises `SerializationError`, changing nothing, for an invalid key. Other keys, and all key groups, are
    checked when an entry is stored.
    """
    calls = tuple(follow_ups)
    to_bytes = None if key_serializer.equal_values_have_equal_bytes else key_serializer.to_bytes

    def set_key(key: Any, key_group: int) -> None:
        context.key = key
        context.key_group = key_group

    def set_encoded_key(key: Any, key_group: int) -> None:
        context.key = to_bytes(key)  # type: ignore[misc]
        context.key_group = key_group

    def set_both_keys(key: Any, key_group: int) -> None:
        context.key = also.key = key
        context.key_group = also.key_group = key_group

    def set_encoded_key_and_key(key: Any, key_group: int) -> None:
        set_encoded_key(key, key_group)
        also.key, also.key_group = key, key_group

    if also is None:
        setter = set_key if to_bytes is None else set_encoded_key
    else:
        setter = set_both_keys if to_bytes is None else set_encoded_key_and_key
    if not calls:
        return setter

    def set_key_and_follow_up(key: Any, key_group: int) -> None:
        setter(key, key_group)
        for call in calls:
            call()

    return set_key_and_follow_up


class NamespacedKeyContext:
    """The key context of one state with namespaces. Its entry keys are pairs of key and namespace."""

    __slots__ = ("_context", "_exact", "_to_bytes", "namespace")

    def __init__(self, context: KeyContext, namespace_serializer: TypeSerializer[Any], state_name: str) -> None:
        self._context = context
        self._exact = compile_exact(
            namespace_serializer, lambda: f"state {state_name!r}, the namespace", reject_none=True
        )
        stands_for_itself = namespace_serializer.equal_values_have_equal_bytes
        self._to_bytes = None if stands_for_itself else namespace_serializer.to_bytes
        self.namespace: Any = NO_NAMESPACE

    @property
    def key(self) -> Any:
        return self._context.key, self.namespace

    @property
    def key_group(self) -> int:
        return self._context.key_group

    def entry_key(self, key: Any) -> Any:
        """The pair of key and current namespace."""
        return key, self.namespace

    def entry_namespace(self, namespace: Any) -> Any:
        """The entry key of a namespace; raises `SerializationError` for None or an invalid one."""
        exact = self._exact(namespace)
        return exact if self._to_bytes is None else self._to_bytes(exact)

    def enter(self, entry_namespace: Any) -> None:
        """Make a namespace current, by its entry key."""
        self.namespace = entry_namespace


AnyKeyContext = KeyContext | NamespacedKeyContext
"""The current key, as a state handle reads it."""
