"""The current key, shared by a backend and all its state handles.

It is a plain object with plain attributes because it is written once per record and read at every state access. ``key``
is what stands for the key in caches: the key itself where equal keys have equal bytes, else its bytes (two NaNs are not
equal in Python, and are one key).
"""

from __future__ import annotations

from typing import Any, Final

from statebackend.errors import NoCurrentKeyError


class _NoKey:
    """Stands for 'no current key'; it is unhashable on purpose, so that a cache look-up with it fails at once."""

    __slots__ = ()

    def __hash__(self) -> int:
        raise NoCurrentKeyError(
            "keyed state was touched while no key is current: use it in process_element, not in open() or close()"
        )

    def __repr__(self) -> str:
        return "NO_KEY"


NO_KEY: Final = _NoKey()


class KeyContext:
    """The key that is being processed and its key group."""

    __slots__ = ("key", "key_group")

    def __init__(self) -> None:
        self.key: Any = NO_KEY
        self.key_group = -1


class NamespacedKeyContext:
    """A key context seen by a state with namespaces: the key in caches is the pair of both."""

    __slots__ = ("_context", "namespace")

    def __init__(self, context: KeyContext, namespace: Any) -> None:
        self._context = context
        self.namespace = namespace

    @property
    def key(self) -> Any:
        return self._context.key, self.namespace

    @property
    def key_group(self) -> int:
        return self._context.key_group
