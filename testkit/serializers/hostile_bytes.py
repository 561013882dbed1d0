"""Bytes that no serializer wrote: cut off, changed, and made to claim more than there is.

The strategies start from real encodings, because bytes at random are refused at the first field and show little.
"""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, Final

from hypothesis import strategies as st

HOSTILE_NUMBERS: Final = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f",
)
"""Counts and lengths as a hostile writer would claim them: the largest and the most negative, and long varints."""

MEMORY_PER_BYTE: Final = 4096
MEMORY_AT_LEAST: Final = 64 * 1024 * 1024


def damaged(encoded: bytes) -> st.SearchStrategy[bytes]:
    """Encodings with a few bytes changed, a hostile number put in, or a part repeated many times."""
    places = st.integers(0, max(len(encoded) - 1, 0))
    changed = st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=4).map(
        lambda changes: _with_changes(encoded, changes)
    )
    hostile = st.tuples(places, st.sampled_from(HOSTILE_NUMBERS)).map(
        lambda drawn: encoded[: drawn[0]] + drawn[1] + encoded[drawn[0] + len(drawn[1]) :]
    )
    repeated = st.tuples(places, places, st.sampled_from([10, 5000])).map(
        lambda drawn: encoded[: drawn[0]] + encoded[drawn[0] : drawn[1]] * drawn[2] + encoded[drawn[1] :]
    )
    return st.one_of(changed, hostile, repeated, st.binary(max_size=64))


def damaged_everywhere(encoded: bytes, limit: int = 300) -> Iterator[bytes]:
    """Every truncation, and every byte with each bit flipped and as the largest and the smallest there is.

    More than ``limit`` are sampled, the same ones each time, unless the environment sets ``STATEBACKEND_FUZZ=all``.
    """
    places = [(place, None) for place in range(len(encoded))]
    flips = [(place, flip) for place in range(len(encoded)) for flip in (*(1 << bit for bit in range(8)), 0xFF, 0x7F)]
    chosen: list[tuple[int, int | None]] = [*places, *flips]
    if len(chosen) > limit and os.environ.get("STATEBACKEND_FUZZ") != "all":
        chosen = random.Random(len(encoded)).sample(chosen, limit)
    for place, flip in chosen:
        if flip is None:
            yield encoded[:place]
        else:
            yield encoded[:place] + bytes((encoded[place] ^ flip,)) + encoded[place + 1 :]


def _with_changes(encoded: bytes, changes: list[tuple[int, int]]) -> bytes:
    data = bytearray(encoded or b"\0")
    for place, byte in changes:
        data[place] = byte
    return bytes(data)


def peak_memory_of(action: Callable[[], Any]) -> int:
    """The most bytes of Python objects alive at once while the action runs, beyond those before it."""
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        action()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not was_tracing:
            tracemalloc.stop()
