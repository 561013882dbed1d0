"""The lock file as text, and back: every line is checked, and what is not as it was written is refused.

    lock     := title notes "max_parallelism " number NL operator* NL bytes* "end" NL
    title    := "statebackend state lock, format 1" NL
    notes    := two lines that begin with "#", always the same
    operator := NL "operator " name NL ("  " what the line says NL)*
    bytes    := "bytes of " name " sealed " 64 hexadecimal digits NL ("  keyed " base64 NL)* ("  operator " base64 NL)*

The bytes of an operator are those of a checkpoint's handles without entries: `keyed` is the meta data of keyed state
(`statebackend.keyed.state_meta`), `operator` that of operator state, if there is any
(`statebackend.operator_state.operator_state_handles`); a line has 72 bytes of them. They hold the serializer snapshots,
and a verdict needs nothing else.

The seal is the SHA-256 of the operator's lines, its bytes and ``max_parallelism``. So lines that a person has edited,
or that git has merged, are told from those that the command has written; and since each operator has its own, a merge
of changes to different operators is a lock again. A lock is read by taking it apart, and is right if putting the parts
together again gives the same text: nothing in it is left unread.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import frozen

from checkpointing.errors import CheckpointError
from checkpointing.handles.state_handles import MAX_MAX_PARALLELISM, OpaqueStateHandle
from savepoints.errors import StateLockError
from savepoints.state_lock.lock_text import operator_lines
from savepoints.state_lock.locked_state import LockedOperator, StateLock
from snapshots.errors import StateFormatError
from statebackend.api.errors import StateBackendError
from statebackend.keyed.state_meta import decode_meta, encode_meta
from statebackend.operator_state import operator_state_handles
from statebackend.operator_state.operator_state_handles import (
    OperatorStateHandle,
    decode_operator_state,
    encode_operator_state,
)

__all__ = ["FORMAT_VERSION", "MAX_LOCK_BYTES", "TITLE", "WRITE_ANEW", "lock_from_bytes", "lock_to_bytes"]

FORMAT_VERSION: Final = 1
MAX_LOCK_BYTES: Final = 16 << 20
"""A lock of more bytes is neither written nor read: the states of one operator take a few thousand."""

WRITE_ANEW: Final = "write it anew: statebackend lock --job MODULE:FACTORY --output"
"""What to do about a lock that is not as it was written, to be followed by its path."""

TITLE: Final = "statebackend state lock, format "
"""What every lock begins with, whatever its version."""

_NOTES: Final = (
    "# Written by `statebackend lock`, compared by `statebackend check`: look at it in reviews, do not edit it.",
    "# To resolve a conflict in it take either side, then run `statebackend lock` for the program as it is.",
)
_BYTES_PER_LINE: Final = 72
_SEAL: Final = re.compile(r'bytes of (".*") sealed ([0-9a-f]{64})')
_MAX_PARALLELISM: Final = re.compile(r"max_parallelism (\d{1,9})")
_CONFLICT: Final = re.compile(r"^(<<<<<<<|=======|>>>>>>>|\|\|\|\|\|\|\|)", re.MULTILINE)


@frozen
class _SealedOperator:
    """An operator as the file has it: its lines, and its bytes."""

    lines: tuple[str, ...]
    keyed: bytes
    operator: bytes

    def seal(self, max_parallelism: int) -> str:
        digest = hashlib.sha256()
        text = "\n".join([f"max_parallelism {max_parallelism}", *self.lines])
        for part in (text.encode(), self.keyed, self.operator):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.hexdigest()


def lock_to_bytes(lock: StateLock) -> bytes:
    """The bytes of the file, the same for the same state. Raises `StateLockError` for one that is too large."""
    sealed = [
        _SealedOperator(
            tuple(operator_lines(one)),
            encode_meta(one.keyed),
            _operator_bytes(OperatorStateHandle(one.operator_states)),
        )
        for one in lock.operators
    ]
    data = _assembled(lock.max_parallelism, [(one, one.seal(lock.max_parallelism)) for one in sealed]).encode()
    _check_size(data, lock.where)
    return data


def lock_from_bytes(data: bytes, where: str) -> StateLock:
    """The lock in these bytes; ``where`` names the file.

    Raises `StateLockError` for anything that `lock_to_bytes` has not written, with what to do.
    """
    _check_size(data, where)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise StateLockError(f"{where} is no text in UTF-8 (byte {error.start}): it is damaged, or no lock") from error
    if "\r" in text:
        raise StateLockError(
            f"{where} has the line ends of Windows: keep git from changing it by a line '{_file_name(where)} -text' in "
            f".gitattributes, and check it out again"
        )
    conflict = _CONFLICT.search(text)
    if conflict:
        line = text.count("\n", 0, conflict.start()) + 1
        raise StateLockError(
            f"{where} has a conflict of git in line {line}: take either side, and {WRITE_ANEW} {where}"
        )
    return _taken_apart(text, where)


def _check_size(data: bytes, where: str) -> None:
    if len(data) > MAX_LOCK_BYTES:
        raise StateLockError(f"{where} has {len(data):,} bytes, a lock has at most {MAX_LOCK_BYTES:,}")


def _assembled(max_parallelism: int, operators: Sequence[tuple[_SealedOperator, str]]) -> str:
    lines = [f"{TITLE}{FORMAT_VERSION}", *_NOTES, f"max_parallelism {max_parallelism}"]
    for one, _ in operators:
        lines += ["", *one.lines]
    lines.append("")
    for one, seal in operators:
        lines.append(f"bytes of {one.lines[0].removeprefix('operator ')} sealed {seal}")
        lines += [f"  keyed {part}" for part in _base64_lines(one.keyed)]
        lines += [f"  operator {part}" for part in _base64_lines(one.operator)]
    lines.append("end")
    return "\n".join(lines) + "\n"


def _base64_lines(data: bytes) -> Iterator[str]:
    for start in range(0, len(data), _BYTES_PER_LINE):
        yield base64.b64encode(data[start : start + _BYTES_PER_LINE]).decode()


def _taken_apart(text: str, where: str) -> StateLock:
    lines = text.split("\n")
    _check_title(lines[0], where)
    if lines[-2:] != ["end", ""]:
        raise StateLockError(f"{where} does not end with a line 'end': it was cut off; {WRITE_ANEW} {where}")
    try:
        first_bytes = next(index for index, line in enumerate(lines) if line.startswith("bytes of ") or line == "end")
        max_parallelism = int(_matched(_MAX_PARALLELISM, lines[3])[1])
        text_blocks = _blocks(lines[4 : first_bytes - 1], "")
        byte_blocks = _blocks(lines[first_bytes:-2], "bytes of ")
        operators = [
            _sealed(block[1:], bytes_block) for block, bytes_block in zip(text_blocks, byte_blocks, strict=True)
        ]
    except (ValueError, IndexError, StopIteration):
        raise StateLockError(f"{where} is not as it was written: {WRITE_ANEW} {where}") from None
    for one, seal in operators:
        if one.seal(max_parallelism) != seal:
            raise StateLockError(
                f"{where}: what is written of {one.lines[0]} is not what was sealed: it was edited by hand, or merged "
                f"from two changes to that operator. If the program is as it should be, {WRITE_ANEW} {where}"
            )
    if _assembled(max_parallelism, operators) != text:
        raise StateLockError(f"{where} is not as it was written: {WRITE_ANEW} {where}")
    if not 1 <= max_parallelism <= MAX_MAX_PARALLELISM:
        raise StateLockError(f"{where}: max_parallelism is {max_parallelism}, and not from 1 to {MAX_MAX_PARALLELISM}")
    lock = StateLock(max_parallelism, tuple(_operator(one, where) for one, _ in operators), where)
    uids = list(lock.operator_uids)
    if uids != sorted(set(uids)):
        raise StateLockError(
            f"{where} has operators twice or in another order than that of their names: {WRITE_ANEW} {where}"
        )
    return lock


def _check_title(title: str, where: str) -> None:
    version = title.removeprefix(TITLE)
    if not title.startswith(TITLE) or not version.isdigit():
        raise StateLockError(f"{where} does not begin with {TITLE!r} and a number: it is no lock of state")
    if version != str(FORMAT_VERSION):
        raise StateLockError(
            f"{where} has format {version:.20}, and {FORMAT_VERSION} is the newest known here: a newer release wrote it"
        )


def _blocks(lines: Sequence[str], begin: str) -> list[list[str]]:
    """The lines in blocks, each of which begins with a line that begins so, or is empty if ``begin`` is."""
    blocks: list[list[str]] = []
    for line in lines:
        if line.startswith(begin) if begin else not line:
            blocks.append([])
        blocks[-1].append(line)
    return blocks


def _matched(pattern: re.Pattern[str], line: str) -> re.Match[str]:
    found = pattern.fullmatch(line)
    if found is None:
        raise ValueError(f"not a line of a lock: {line:.80}")
    return found


def _sealed(lines: Sequence[str], bytes_block: Sequence[str]) -> tuple[_SealedOperator, str]:
    name, seal = _matched(_SEAL, bytes_block[0]).groups()
    if lines[0] != f"operator {name}":
        raise ValueError("the bytes are of another operator")
    parts = {"keyed": b"", "operator": b""}
    for line in bytes_block[1:]:
        role, encoded = line.removeprefix("  ").split(" ")
        parts[role] = parts.get(role, b"") + base64.b64decode(encoded, validate=True)
    return _SealedOperator(tuple(lines), parts["keyed"], parts["operator"]), seal


def _operator_bytes(handle: OperatorStateHandle) -> bytes:
    encoded = encode_operator_state(handle)
    return b"" if encoded is None else encoded.meta


def _operator(sealed: _SealedOperator, where: str) -> LockedOperator:
    try:
        uid = json.loads(sealed.lines[0].removeprefix("operator "))
        part = OpaqueStateHandle(operator_state_handles.FORMAT, sealed.operator) if sealed.operator else None
        return LockedOperator(uid, decode_meta(sealed.keyed, 0), decode_operator_state(part).states)
    except (StateBackendError, StateFormatError, CheckpointError, ValueError) as error:
        raise StateLockError(f"{where}: the states of {sealed.lines[0]} cannot be read: {error}") from error


def _file_name(where: str) -> str:
    return where.replace("\\", "/").rpartition("/")[2]
