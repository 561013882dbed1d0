"""The checksum of every durable file: xxh3 with 128 bits, written `xxh3:<32 lower-case hex digits>`.

It finds accidents (truncation, bit rot, a file overwritten by another), not attacks: whoever can write
the store can write a matching checksum. The prefix names the algorithm so that another can be added.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import BinaryIO

import xxhash

__all__ = ["CHUNK_BYTES", "checksum_of_bytes", "checksum_of_chunks", "chunks_of", "is_checksum"]

CHUNK_BYTES = 1 << 20

_CHECKSUM = re.compile(r"xxh3:[0-9a-f]{32}")


def is_checksum(text: object) -> bool:
    """Whether `text` has the form of a checksum."""
    return isinstance(text, str) and _CHECKSUM.fullmatch(text) is not None


def checksum_of_bytes(data: bytes) -> str:
    """The checksum of `data`."""
    return "xxh3:" + xxhash.xxh3_128_hexdigest(data)


def checksum_of_chunks(chunks: Iterable[bytes]) -> tuple[int, str]:
    """Total size in bytes and checksum of the concatenated `chunks`, in constant memory."""
    hasher = xxhash.xxh3_128()
    size_bytes = 0
    for chunk in chunks:
        hasher.update(chunk)
        size_bytes += len(chunk)
    return size_bytes, "xxh3:" + hasher.hexdigest()


def chunks_of(source: BinaryIO) -> Iterable[bytes]:
    """The bytes of `source` from its position to its end, in chunks of at most 1 MiB."""
    while chunk := source.read(CHUNK_BYTES):
        yield chunk
