"""Batches of records that are objects already, and what every batch holds its keys to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from attrs import frozen

from checkpointing.metadata.checkpoint_sections import ChannelTimestamp
from streamjobs.errors import NullKeyError

__all__ = ["ObjectBatch", "check_keys"]


@frozen
class ObjectBatch:
    """Records, their keys and their key groups, as lists of one length; what is known of their time, if anything is."""

    columns: ClassVar[None] = None

    records: Sequence[Any]
    keys: Sequence[Any]
    key_groups: Sequence[int]
    timestamps: Sequence[int | None] | None = None
    channel_timestamps: Collection[ChannelTimestamp] = ()
    is_early: bool = False


def check_keys(operator_uid: str, keys: Sequence[Any], is_composite: bool) -> None:
    """Raises `NullKeyError` if a key, or a part of a composite key, is None."""
    has_null = any(None in key for key in keys) if is_composite else None in keys
    if has_null:
        raise NullKeyError(
            f"operator {operator_uid!r}: a record has a null key; "
            f"filter such records out, or give them a key, before key_by"
        )
