"""Where the incremental clean-up of a state begins: at the current key, as a store has it in its addresses."""

from __future__ import annotations

from typing import Any

from snapshots.errors import SerializationError
from statebackend.keyed.entry_keys import KeyForm
from statebackend.keyed.key_context import KeyContext
from statebackend.keyed.state_schema import NAMESPACE_ROLE, StateSchema
from statebackend.ttl.expiry_sweep import PassStart
from typeserializers.kernel.type_serializer import TypeSerializer


def pass_start(schema: StateSchema, current: KeyContext, key_serializer: TypeSerializer[Any]) -> PassStart:
    """The start of a pass over a registered state with a time-to-live."""
    assert schema.expiry is not None
    read_key = KeyForm(key_serializer).from_bytes
    read_namespace = KeyForm(schema.serializers[NAMESPACE_ROLE]).from_bytes
    return PassStart(
        current.key_group,
        _current_key_bytes(current, key_serializer),
        schema.expiry,
        lambda address: (address[0], read_key(address[1]), read_namespace(address[2])),
    )


def _current_key_bytes(current: KeyContext, key_serializer: TypeSerializer[Any]) -> bytes:
    """The bytes of the current key; empty if there is none, or none that fits."""
    if not current.has_key:
        return b""
    if not key_serializer.equal_values_have_equal_bytes:
        # The bytes stand for the key already.
        stands_for_it: bytes = current.key
        return stands_for_it
    try:
        return key_serializer.to_bytes(current.key)
    except SerializationError:
        return b""
