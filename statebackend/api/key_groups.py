"""Key groups: the atoms of keyed state, and how they are dealt out to subtasks.

Every key belongs to one of ``max_parallelism`` groups for ever; a subtask owns a contiguous range of groups. Changing
the parallelism moves whole groups, never single keys. The arithmetic is Flink's ``KeyGroupRangeAssignment``; the group
of a key is computed by the runtime (Spark's ``pmod(xxhash64(key), max_parallelism)``), not here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from attrs import frozen

from statebackend.api.errors import StateBackendError

MAX_PARALLELISM_LIMIT: Final = 1 << 15
"""The largest number of key groups, as in Flink: a group takes two bytes in every stored key."""


DEFAULT_MAX_PARALLELISM: Final = 128
"""The number of key groups of a job, and of a savepoint written from nothing, where nobody says one."""


@frozen
class KeyGroupRange:
    """The key groups ``start`` to ``end``, both included."""

    start: int
    end: int

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.start <= self.end < MAX_PARALLELISM_LIMIT:
            raise ValueError(f"no key group range: {self.start} to {self.end}")

    def __len__(self) -> int:
        return self.end - self.start + 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end + 1))

    def __contains__(self, key_group: object) -> bool:
        return isinstance(key_group, int) and self.start <= key_group <= self.end

    def require(self, key_group: int, what: str = "record") -> None:
        """Raises `StateBackendError` for a group outside the range; ``what`` is what came with it."""
        if key_group not in self:
            raise StateBackendError(
                f"key group {key_group} does not belong to this subtask ({self}): "
                f"the {what} was routed to the wrong subtask"
            )

    def overlaps(self, other: KeyGroupRange) -> bool:
        """Whether the two ranges share a group."""
        return self.start <= other.end and other.start <= self.end

    def contains_range(self, other: KeyGroupRange) -> bool:
        """Whether every group of the other range is in this one."""
        return self.start <= other.start and other.end <= self.end

    def __str__(self) -> str:
        return f"key groups {self.start} to {self.end}"


def check_parallelism(parallelism: int, max_parallelism: int) -> None:
    """Raises `ValueError` unless ``1 <= parallelism <= max_parallelism <= 32768``."""
    if not 1 <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise ValueError(f"max_parallelism is {max_parallelism}; it must be from 1 to {MAX_PARALLELISM_LIMIT}")
    if not 1 <= parallelism <= max_parallelism:
        raise ValueError(f"parallelism is {parallelism}; it must be from 1 to max_parallelism ({max_parallelism})")


def subtask_of_key_group(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """The index of the subtask that owns a key group."""
    return key_group * parallelism // max_parallelism


def key_group_range_of_subtask(subtask_index: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """The groups that a subtask owns; the inverse of `subtask_of_key_group`."""
    check_parallelism(parallelism, max_parallelism)
    if not 0 <= subtask_index < parallelism:
        raise ValueError(f"subtask {subtask_index} does not exist at parallelism {parallelism}")
    start = (subtask_index * max_parallelism + parallelism - 1) // parallelism
    end = ((subtask_index + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end)
