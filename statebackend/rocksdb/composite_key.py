"""How an entry is addressed in RocksDB.

    raw key := u16(key group) key namespace [user key | u64(chunk number)]

Key, namespace and user key are what their serializers write; these encodings are self-delimiting, so no entry's address
is a prefix of another's, and everything under one key and namespace is one contiguous run.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from statebackend.errors import StateBackendError
from statebackend.key_groups import KeyGroupRange
from typeserializers.type_serializer import TypeSerializer

KEY_GROUP = struct.Struct(">H")
CHUNK_NUMBER = struct.Struct(">Q")


class RawKeys:
    """Makes and takes apart the raw keys of one state."""

    def __init__(
        self,
        key_serializer: TypeSerializer[Any],
        namespace_serializer: TypeSerializer[Any],
        key_groups: KeyGroupRange,
        is_namespaced: bool,
    ) -> None:
        self.key_groups = key_groups
        self.lower = KEY_GROUP.pack(key_groups.start)
        self._key_is_object = key_serializer.equal_values_have_equal_bytes
        self._write_key = key_serializer.to_bytes
        self._read_key = key_serializer.codec.read
        self._write_namespace = namespace_serializer.to_bytes
        self._read_namespace = namespace_serializer.codec.read
        self._is_namespaced = is_namespaced
        self.prefix: Callable[[Any, int], bytes] = self._namespaced_prefix if is_namespaced else self._void_prefix

    def _void_prefix(self, entry_key: Any, key_group: int) -> bytes:
        key = self._write_key(entry_key) if self._key_is_object else entry_key
        return self._group(key_group) + key + b"\x00"

    def _namespaced_prefix(self, entry_key: Any, key_group: int) -> bytes:
        key, namespace = entry_key
        key = self._write_key(key) if self._key_is_object else key
        return self._group(key_group) + key + self._write_namespace(namespace)

    def _group(self, key_group: int) -> bytes:
        if key_group not in self.key_groups:
            raise StateBackendError(
                f"key group {key_group} does not belong to this subtask ({self.key_groups}): "
                f"the record was routed to the wrong subtask"
            )
        return KEY_GROUP.pack(key_group)

    def split(self, raw: bytes) -> tuple[int, bytes, bytes, bytes]:
        """Key group, key, namespace and the rest of a raw key, as bytes (the group as a number)."""
        _, key_end = self._read_key(raw, 2)
        _, namespace_end = self._read_namespace(raw, key_end)
        return KEY_GROUP.unpack_from(raw)[0], raw[2:key_end], raw[key_end:namespace_end], raw[namespace_end:]

    def key_of(self, raw: bytes) -> Any:
        """The key in a raw key."""
        return self._read_key(raw, 2)[0]

    def is_above(self, raw: bytes) -> bool:
        """Whether a raw key lies behind the last key group of the range."""
        return bool(KEY_GROUP.unpack_from(raw)[0] > self.key_groups.end)
