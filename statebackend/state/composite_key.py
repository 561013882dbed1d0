"""Raw keys: the address of an entry as one byte string, in RocksDB and in heap tables of rows.

    raw key := u16(key group) key namespace [user key | u64(chunk number)]
             | u16(key group) element                                          of a priority queue

Key, namespace and user key are written by their serializers. These encodings are self-delimiting, so no address is a
prefix of another, and everything under one key and namespace is one contiguous range.

    mark := ffff raw key        with an empty value: its file deletes the raw key

RocksDB does not report which keys a file deletes, and a merge of files needs to know them. So an increment repeats each
deletion as a mark, after all key groups, where no scan of a state reads.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from snapshots.errors import SerializationError
from statebackend.state.key_batch import KeyBatch
from statebackend.state.key_groups import KeyGroupRange
from typeserializers.kernel.code_generation import GeneratedFunction, WriteEmitter, indented
from typeserializers.kernel.stepping_over import stepping_over
from typeserializers.kernel.type_serializer import TypeSerializer

Read = Callable[[bytes, int], tuple[Any, int]]

KEY_GROUP = struct.Struct(">H")
CHUNK_NUMBER = struct.Struct(">Q")

DELETION_MARK = b"\xff\xff"
"""The prefix of a mark. Raw keys do not start with it, because key groups end at 32,767."""

VOID_NAMESPACE_BYTES = b"\x00"
"""The bytes that `VoidNamespaceSerializer` writes."""


class RawKeys:
    """Builds and splits the raw keys of one state.

    ``prefix(entry_key, key_group)`` is called once per key and epoch, so it is generated code. For a key of fixed width
    it is one ``struct`` call. With namespaces the entry key is a pair of key and namespace, each an object or bytes. It
    raises `StateBackendError` for a key group of another subtask.
    """

    def __init__(
        self,
        key_serializer: TypeSerializer[Any],
        namespace_serializer: TypeSerializer[Any],
        key_groups: KeyGroupRange,
        is_namespaced: bool,
    ) -> None:
        self.key_groups = key_groups
        self._key_serializer = key_serializer
        self._namespace_serializer = namespace_serializer
        self._is_namespaced = is_namespaced
        self.prefix: Callable[[Any, int], bytes] = self._compile_prefix(is_namespaced)

    def _compile_prefix(self, is_namespaced: bool) -> Callable[[Any, int], bytes]:
        function = GeneratedFunction("raw_key", "entry_key, key_group")
        emitter = WriteEmitter(function)
        reject = function.bind("reject", self.key_groups.require)
        check = f"if not {self.key_groups.start} <= key_group <= {self.key_groups.end}: {reject}(key_group)"
        emitter.fixed("H", "key_group")
        key = "entry_key"
        if is_namespaced:
            emitter.line("key, namespace = entry_key")
            key = "key"
        if self._key_serializer.equal_values_have_equal_bytes:
            self._key_serializer.emit_write(emitter, key)
        else:
            emitter.append(key)
        if is_namespaced:
            if self._namespace_serializer.equal_values_have_equal_bytes:
                self._namespace_serializer.emit_write(emitter, "namespace")
            else:
                emitter.append("namespace")
        else:
            emitter.append(repr(VOID_NAMESPACE_BYTES))
        body = indented([*emitter.lines, f"return {emitter.expression()}"])
        misfit = function.bind("misfit", self._misfit)
        return function.compile([check, "try:", *body, f"except Exception as error: raise {misfit}({key}, error)"])

    def _misfit(self, key: Any, error: Exception) -> SerializationError:
        failure = self._key_serializer.serialization_error(key, error)
        return failure.within("the current key")

    def prefixes(self, keys: Iterable[Any], key_groups: Iterable[int], entry_key: Callable[[Any], Any]) -> list[bytes]:
        """Return the prefix of each key. ``entry_key`` adds the current namespace to a key."""
        prefix = self.prefix
        if not self.takes_keys:
            keys = map(self._key_serializer.to_bytes, keys)
        return [prefix(entry_key(key), key_group) for key, key_group in zip(keys, key_groups, strict=True)]

    def of_batch(self, keys: KeyBatch, entry_key: Callable[[Any], Any]) -> list[bytes]:
        """Return the prefix of each key, like `prefixes`. Uses the encoded keys of the batch if it has them."""
        rows = keys.rows if self.takes_keys else None
        if not rows:
            return self.prefixes(keys.keys, keys.key_groups, entry_key)
        for key_group in (min(keys.key_groups), max(keys.key_groups)):
            self.key_groups.require(key_group)
        first = self.prefix(entry_key(keys.keys[0]), keys.key_groups[0])
        namespace = first.removeprefix(rows[0])
        return [row + namespace for row in rows]

    def namespace_bytes(self, namespace: Any) -> bytes:
        """Return the bytes of a namespace in raw keys."""
        if not self._is_namespaced:
            return VOID_NAMESPACE_BYTES
        serializer = self._namespace_serializer
        written: bytes = serializer.codec.write(namespace) if serializer.equal_values_have_equal_bytes else namespace
        return written

    @property
    def takes_keys(self) -> bool:
        """Whether entry keys hold the keys themselves, not their bytes."""
        return self._key_serializer.equal_values_have_equal_bytes

    @cached_property
    def _steps(self) -> tuple[Read, Read]:
        """Functions that find the end of a key and of a namespace without decoding them."""
        return stepping_over(self._key_serializer).codec.read, stepping_over(self._namespace_serializer).codec.read

    def split(self, raw: bytes) -> tuple[int, bytes, bytes, bytes]:
        """Split a raw key into key group (a number), key, namespace and the rest (bytes)."""
        step_over_key, step_over_namespace = self._steps
        _, key_end = step_over_key(raw, 2)
        _, namespace_end = step_over_namespace(raw, key_end)
        return KEY_GROUP.unpack_from(raw)[0], raw[2:key_end], raw[key_end:namespace_end], raw[namespace_end:]
