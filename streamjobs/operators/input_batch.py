"""Batches of records that are objects already, and what every batch holds its keys to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from attrs import frozen

from checkpointing.metadata.checkpoint_sections import ChannelTimestamp
from streamjobs.api.stream_graph import name_of_input
from streamjobs.errors import NullKeyError

__all__ = ["BatchPlaces", "ObjectBatch", "check_keys", "place_of_input"]


@frozen
class ObjectBatch:
    """Records, their keys and their key groups, as lists of one length; what is known of their time, if anything is."""

    columns: ClassVar[None] = None
    places: ClassVar[None] = None

    records: Sequence[Any]
    keys: Sequence[Any]
    key_groups: Sequence[int]
    timestamps: Sequence[int | None] | None = None
    channel_timestamps: Collection[ChannelTimestamp] = ()
    is_early: bool = False


@frozen(eq=False)
class BatchPlaces:
    """Where the records of a batch belong, as Arrow columns: the columns of their keys, key groups and timestamps.

    ``objects_of`` makes the records that a mask says, with all that belongs to them.
    """

    keys: Sequence[pa.Array]
    key_groups: pa.Array
    timestamps: pa.Array
    objects_of: Callable[[pa.Array], ObjectBatch]

    def only(self, mask: pa.Array) -> BatchPlaces:
        """Those of the records that the mask says; ``objects_of`` goes on to be asked for all of them."""
        keys = [column.filter(mask) for column in self.keys]
        return BatchPlaces(keys, self.key_groups.filter(mask), self.timestamps.filter(mask), self.objects_of)


def place_of_input(operator_uid: str, index: int, count: int) -> str:
    """How errors call the input of an operator at that place, from 0, if it has so many."""
    return f"operator {operator_uid!r}" if count == 1 else f"operator {operator_uid!r}, {name_of_input(index)}"


def check_keys(place: str, keys: Sequence[Any], is_composite: bool) -> None:
    """Raises `NullKeyError` if a key, or a part of a composite key, of an input is None."""
    has_null = any(None in key for key in keys) if is_composite else None in keys
    if has_null:
        raise NullKeyError(
            f"{place}: a record has a null key; filter such records out, or give them a key, before key_by"
        )
