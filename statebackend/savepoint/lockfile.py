"""Schema lockfiles: the schemas of a job's states as a reviewable text file, and a history directory of all releases.

A lockfile implements `StoredSchemas` as a savepoint does, so the same compatibility check serves both. Operators and
states are sorted by name.

    lock     := title notes "max_parallelism " number NL operator* NL bytes* "end" NL
    title    := "statebackend schema lockfile, format 1" NL
    notes    := two lines that begin with "#", always the same
    operator := NL "operator " name NL ("  " description NL)*
    bytes    := "bytes of " name " sha256 " 64 hexadecimal digits NL ("  keyed " base64 NL)* ("  operator " base64 NL)*

- The operator lines are for people. Each describes one key, state, type, field or constant, so a diff lists the
  changes. Names are JSON texts and unprintable characters are escaped.
- The bytes are the metadata of keyed state and operator state, as in a checkpoint's handles without entries. They hold
  the serializer snapshots, and a compatibility check needs nothing else.
- The checksum is the SHA-256 of the operator's lines, its bytes and ``max_parallelism``. It detects manual edits. Each
  operator has its own checksum, so a git merge of changes to different operators is a valid lockfile.
- Parsing is strict: a file is valid only if its parsed parts assemble to the same text.

Files of a history are named `00001-<12 hex>.lock`, with the beginning of the file's own SHA-256. Two branches that both
add a file use different names, so git merges them. A file of a history never changes.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import field, frozen

from snapshots.errors import StateFormatError
from snapshots.format_versions import newer_version, pre_release
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from statebackend.checkpoint.errors import CheckpointError
from statebackend.checkpoint.fs.store_uri import is_uri, without_secrets
from statebackend.checkpoint.state_handles import MAX_MAX_PARALLELISM, OpaqueStateHandle
from statebackend.savepoint.atomic_files import atomic_file
from statebackend.savepoint.errors import StateLockError
from statebackend.savepoint.type_descriptions import FieldDescription, RecordDescription, TypeDescription, describe_type
from statebackend.state import operator_state_handles
from statebackend.state.errors import StateBackendError
from statebackend.state.operator_state_handles import (
    OperatorStateHandle,
    OperatorStateMeta,
    decode_operator_state,
    encode_operator_state,
)
from statebackend.state.state_meta import KeyedStateMeta, decode_meta, encode_meta
from typeserializers.scalars.void import VoidNamespaceSerializerSnapshot

__all__ = [
    "FORMAT_VERSION",
    "MAX_LOCK_BYTES",
    "REWRITE_HINT",
    "TITLE",
    "LockedOperator",
    "StateLock",
    "add_to_history",
    "is_lock_file",
    "lock_from_bytes",
    "lock_to_bytes",
    "locks_of_history",
    "operator_line",
    "operator_lines",
    "printable",
    "read_lock",
    "would_change",
    "write_lock",
    "write_locks",
]


@frozen
class LockedOperator:
    """The schemas of one operator, sorted by name. ``keyed`` is the meta of a snapshot without entries."""

    uid: str
    keyed: KeyedStateMeta
    operator_states: tuple[OperatorStateMeta, ...] = ()


@frozen
class StateLock:
    """The schemas that a job stores. ``where`` is the location that errors name."""

    max_parallelism: int
    operators: tuple[LockedOperator, ...]
    where: str = field(default="the lock", eq=False)

    @property
    def operator_uids(self) -> Sequence[str]:
        """The uids of the operators that have state, sorted."""
        return [one.uid for one in self.operators]

    def keyed_metas_of(self, uid: str) -> Sequence[KeyedStateMeta]:
        """Return the meta of an operator's keyed state, empty if it has none."""
        known = self._by_uid.get(uid)
        return () if known is None else (known.keyed,)

    def operator_state_metas_of(self, uid: str) -> Sequence[OperatorStateMeta]:
        """Return the metas of an operator's operator state."""
        known = self._by_uid.get(uid)
        return () if known is None else known.operator_states

    @property
    def _by_uid(self) -> Mapping[str, LockedOperator]:
        return {one.uid: one for one in self.operators}


def operator_line(uid: str) -> str:
    """Return the first line of an operator."""
    return f"operator {_name(uid)}"


def operator_lines(operator: LockedOperator) -> list[str]:
    """Return all lines of an operator."""
    lines = [operator_line(operator.uid)]
    lines += _type_lines("  key", describe_type(operator.keyed.key_snapshot))
    for state in operator.keyed.states:
        lines.append(f"  state {_name(state.name)} {state.kind.name}")
        if not isinstance(state.namespace_snapshot, VoidNamespaceSerializerSnapshot):
            lines += _type_lines("    namespace", describe_type(state.namespace_snapshot))
        lines += _role_lines(state.role_snapshots)
    for operator_state in operator.operator_states:
        lines.append(f"  operator state {_name(operator_state.name)} {operator_state.mode.value}")
        part = operator_state.parts[-1]
        lines += _role_lines({role: part.snapshot(operator_state.name, role) for role in part.envelopes})
    return [printable(line) for line in lines]


def printable(text: str) -> str:
    """Return the text in one line, with JSON escapes for unprintable characters."""
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _role_lines(snapshots: Mapping[str, TypeSerializerSnapshot[object]]) -> Iterator[str]:
    for role, snapshot in snapshots.items():
        yield from _type_lines(f"    {role}", describe_type(snapshot))


def _type_lines(place: str, described: TypeDescription) -> Iterator[str]:
    # The reason for an unknown type may change between releases, and the same state must have the same lockfile.
    yield f"{place}: {'(known to its program only)' if described.unknown else described.name}"
    for record in described.records:
        yield from _record_lines(record)


def _record_lines(record: RecordDescription) -> Iterator[str]:
    version = "" if record.schema_version is None else f" version {record.schema_version}"
    yield f"      record {record.name}{version}" if not record.constants else f"      enum {record.name}"
    for constant in record.constants:
        yield f"        {record.name}.{constant}"
    for one in record.fields:
        yield f"        {record.name}.{_field(one)}"


def _field(field: FieldDescription) -> str:
    default = "" if field.default is None else f" = {field.default}"
    former = "".join(f", formerly {name}" for name in field.former_names)
    return f"{field.name}: {field.type_name}{default}{former}"


def _name(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _escaped(character: str) -> str:
    # The escapes of JSON, so that a name with one is still the JSON text of that name.
    return json.dumps(character)[1:-1]


FORMAT_VERSION: Final = 1
MAX_LOCK_BYTES: Final = 16 << 20
"""The maximum size of a lockfile. One operator takes a few thousand bytes."""

REWRITE_HINT: Final = "write it: statebackend lock --job MODULE:FACTORY --output"
"""How to repair a lockfile; the path follows."""

TITLE: Final = "statebackend schema lockfile, format "
"""The beginning of every lockfile, whatever its version."""

_PRE_RELEASE_TITLE: Final = "statebackend state lock, format "

_NOTES: Final = (
    "# Written by `statebackend lock` and compared by `statebackend check`. Review changes, do not edit the file.",
    "# To resolve a git conflict, take either side and run `statebackend lock` again.",
)
_BYTES_PER_LINE: Final = 72
_CHECKSUM: Final = re.compile(r'bytes of (".*") sha256 ([0-9a-f]{64})')
_MAX_PARALLELISM: Final = re.compile(r"max_parallelism (\d{1,9})")
_CONFLICT: Final = re.compile(r"^(<<<<<<<|=======|>>>>>>>|\|\|\|\|\|\|\|)", re.MULTILINE)


@frozen
class _OperatorText:
    """The lines and bytes of an operator in the file."""

    lines: tuple[str, ...]
    keyed: bytes
    operator: bytes

    def checksum(self, max_parallelism: int) -> str:
        digest = hashlib.sha256()
        text = "\n".join([f"max_parallelism {max_parallelism}", *self.lines])
        for part in (text.encode(), self.keyed, self.operator):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.hexdigest()


def lock_to_bytes(lock: StateLock) -> bytes:
    """Return the bytes of the lockfile, identical for identical schemas.

    Raises:
        StateLockError: The lockfile is too large.
    """
    operators = [
        _OperatorText(
            tuple(operator_lines(one)),
            encode_meta(one.keyed),
            _operator_bytes(OperatorStateHandle(one.operator_states)),
        )
        for one in lock.operators
    ]
    data = _assembled(lock.max_parallelism, [(one, one.checksum(lock.max_parallelism)) for one in operators]).encode()
    _check_size(data, lock.where)
    return data


def lock_from_bytes(data: bytes, where: str) -> StateLock:
    """Parse a lockfile. ``where`` names it in errors.

    Raises:
        StateLockError: The bytes were not written by `lock_to_bytes`, or were changed.
    """
    _check_size(data, where)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise StateLockError(
            f"{where} is not UTF-8 text (byte {error.start}): it is damaged or not a lockfile"
        ) from error
    if "\r" in text:
        name = where.replace("\\", "/").rpartition("/")[2]
        raise StateLockError(
            f"{where} has the line ends of Windows: keep git from changing it by a line '{name} -text' in "
            f".gitattributes, and check it out again"
        )
    conflict = _CONFLICT.search(text)
    if conflict:
        line = text.count("\n", 0, conflict.start()) + 1
        raise StateLockError(f"{where} has a git conflict in line {line}: take either side, and {REWRITE_HINT} {where}")
    return _parse_lock(text, where)


def _check_size(data: bytes, where: str) -> None:
    if len(data) > MAX_LOCK_BYTES:
        raise StateLockError(f"{where} has {len(data):,} bytes, and a lockfile has at most {MAX_LOCK_BYTES:,}")


def _assembled(max_parallelism: int, operators: Sequence[tuple[_OperatorText, str]]) -> str:
    lines = [f"{TITLE}{FORMAT_VERSION}", *_NOTES, f"max_parallelism {max_parallelism}"]
    for one, _ in operators:
        lines += ["", *one.lines]
    lines.append("")
    for one, checksum in operators:
        lines.append(f"bytes of {one.lines[0].removeprefix('operator ')} sha256 {checksum}")
        lines += [f"  keyed {part}" for part in _base64_lines(one.keyed)]
        lines += [f"  operator {part}" for part in _base64_lines(one.operator)]
    lines.append("end")
    return "\n".join(lines) + "\n"


def _base64_lines(data: bytes) -> Iterator[str]:
    for start in range(0, len(data), _BYTES_PER_LINE):
        yield base64.b64encode(data[start : start + _BYTES_PER_LINE]).decode()


def _parse_lock(text: str, where: str) -> StateLock:
    lines = text.split("\n")
    _check_title(lines[0], where)
    if lines[-2:] != ["end", ""]:
        raise StateLockError(f"{where} does not end with a line 'end': it was cut off; {REWRITE_HINT} {where}")
    try:
        first_bytes = next(index for index, line in enumerate(lines) if line.startswith("bytes of ") or line == "end")
        max_parallelism = int(_matched(_MAX_PARALLELISM, lines[3])[1])
        text_blocks = _blocks(lines[4 : first_bytes - 1], "")
        byte_blocks = _blocks(lines[first_bytes:-2], "bytes of ")
        operators = [
            _operator_text(block[1:], bytes_block) for block, bytes_block in zip(text_blocks, byte_blocks, strict=True)
        ]
    except (ValueError, IndexError, StopIteration):
        raise StateLockError(f"{where} was changed after it was written: {REWRITE_HINT} {where}") from None
    for one, checksum in operators:
        if one.checksum(max_parallelism) != checksum:
            raise StateLockError(
                f"{where}: the lines of {one.lines[0]} do not match their checksum: they were edited by hand, or "
                f"merged from two changes to that operator. If the program is correct, {REWRITE_HINT} {where}"
            )
    if _assembled(max_parallelism, operators) != text:
        raise StateLockError(f"{where} was changed after it was written: {REWRITE_HINT} {where}")
    if not 1 <= max_parallelism <= MAX_MAX_PARALLELISM:
        raise StateLockError(
            f"{where}: max_parallelism is {max_parallelism}; it must be from 1 to {MAX_MAX_PARALLELISM}"
        )
    lock = StateLock(max_parallelism, tuple(_operator(one, where) for one, _ in operators), where)
    uids = list(lock.operator_uids)
    if uids != sorted(set(uids)):
        raise StateLockError(f"{where} has repeated or unsorted operators: {REWRITE_HINT} {where}")
    return lock


def _check_title(title: str, where: str) -> None:
    if title.startswith(_PRE_RELEASE_TITLE):
        raise StateLockError(pre_release(where, f"Write it again: {REWRITE_HINT.removeprefix('write it: ')} {where}"))
    version = title.removeprefix(TITLE)
    if not title.startswith(TITLE) or re.fullmatch("[1-9][0-9]{0,8}", version) is None:
        raise StateLockError(f"{where} does not begin with {TITLE!r} and a number: it is not a schema lockfile")
    if version != str(FORMAT_VERSION):
        raise StateLockError(newer_version(where, int(version), FORMAT_VERSION))


def _blocks(lines: Sequence[str], begin: str) -> list[list[str]]:
    """Split lines into blocks. A block begins with a line that starts with ``begin``, or is empty if ``begin`` is."""
    blocks: list[list[str]] = []
    for line in lines:
        if line.startswith(begin) if begin else not line:
            blocks.append([])
        blocks[-1].append(line)
    return blocks


def _matched(pattern: re.Pattern[str], line: str) -> re.Match[str]:
    found = pattern.fullmatch(line)
    if found is None:
        raise ValueError(f"not a line of a lockfile: {line:.80}")
    return found


def _operator_text(lines: Sequence[str], bytes_block: Sequence[str]) -> tuple[_OperatorText, str]:
    name, checksum = _matched(_CHECKSUM, bytes_block[0]).groups()
    if lines[0] != f"operator {name}":
        raise ValueError("the bytes belong to another operator")
    parts = {"keyed": b"", "operator": b""}
    for line in bytes_block[1:]:
        role, encoded = line.removeprefix("  ").split(" ")
        parts[role] = parts.get(role, b"") + base64.b64decode(encoded, validate=True)
    return _OperatorText(tuple(lines), parts["keyed"], parts["operator"]), checksum


def _operator_bytes(handle: OperatorStateHandle) -> bytes:
    encoded = encode_operator_state(handle)
    return b"" if encoded is None else encoded.meta


def _operator(text: _OperatorText, where: str) -> LockedOperator:
    try:
        uid = json.loads(text.lines[0].removeprefix("operator "))
        part = OpaqueStateHandle(operator_state_handles.FORMAT, text.operator) if text.operator else None
        return LockedOperator(uid, decode_meta(text.keyed, 0), decode_operator_state(part).states)
    except (StateBackendError, StateFormatError, CheckpointError, ValueError) as error:
        raise StateLockError(f"{where}: the states of {text.lines[0]} cannot be read: {error}") from error


_NAME: Final = re.compile(r"(\d{5})-([0-9a-f]{12})\.lock")
_MAX_LOCKS: Final = 10_000


def is_lock_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file at the path. Savepoints are directories."""
    return not is_uri(os.fspath(path)) and _place(path).is_file()


def read_lock(path: str | os.PathLike[str]) -> StateLock:
    """Read a lockfile.

    Raises:
        StateLockError: The file does not exist or is invalid.
        OSError: The file cannot be read.
    """
    try:
        with _place(path).open("rb") as file:
            # One more byte, to detect a file that is too large.
            data = file.read(MAX_LOCK_BYTES + 1)
    except FileNotFoundError as error:
        raise StateLockError(f"there is no lockfile {os.fspath(path)}; {REWRITE_HINT} {os.fspath(path)}") from error
    return lock_from_bytes(data, os.fspath(path))


def would_change(path: str | os.PathLike[str], lock: StateLock) -> bool:
    """Whether the file is missing or has other bytes than the lock."""
    if not is_lock_file(path):
        return True
    with _place(path).open("rb") as file:
        return file.read(MAX_LOCK_BYTES + 1) != lock_to_bytes(lock)


def write_lock(path: str | os.PathLike[str], lock: StateLock) -> bool:
    """Write the lockfile atomically. Return whether its bytes changed. An edited lockfile is replaced.

    Raises:
        StateLockError: The existing file is not a lockfile, or the lock could not be read back.
        OSError: The file cannot be written.
    """
    if not would_change(path, lock):
        return False
    data = lock_to_bytes(lock)
    lock_from_bytes(data, os.fspath(path))
    if is_lock_file(path):
        _check_was_a_lock(path)
    with atomic_file(path, overwrite=True) as file:
        file.write(data)
    return True


def write_locks(
    path: str | os.PathLike[str], history: str | os.PathLike[str] | None, lock: StateLock
) -> tuple[bool, Path | None]:
    """Write the lockfile and add it to a history, both or neither. Return the results of both functions.

    Raises as `write_lock` and `add_to_history`.
    """
    if history is None:
        return write_lock(path, lock), None
    # The history first: an added file can be deleted again, a replaced file cannot be restored.
    with _directory_made(_place(history)):
        added = add_to_history(history, lock)
        try:
            return write_lock(path, lock), added
        except BaseException:
            if added is not None:
                added.unlink(missing_ok=True)
            raise


def add_to_history(directory: str | os.PathLike[str], lock: StateLock) -> Path | None:
    """Add a lock to a history. Return its file, or None if the history has the same lock already.

    Raises:
        StateLockError: The file of this lock exists and was changed.
    """
    known = _files(directory)
    digest = _digest(lock_to_bytes(lock))
    for file in known:
        if _parsed(file)[1] == digest:
            _check_digest(file, file.read_bytes())
            return None
    number = max((_parsed(file)[0] for file in known), default=0) + 1
    path = _place(directory) / f"{number:05d}-{digest}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lock(path, lock)
    return path


def locks_of_history(directory: str | os.PathLike[str]) -> Iterator[tuple[Path, StateLock]]:
    """Yield the locks of a history, newest first.

    Raises:
        StateLockError: The directory has no locks, or a file does not match its name.
    """
    files = _files(directory)
    if not files:
        raise StateLockError(
            f"there is no history of locks at {os.fspath(directory)}: create it with statebackend lock --history"
        )
    for file in reversed(files):
        lock = read_lock(file)
        _check_digest(file, file.read_bytes())
        yield file, lock


@contextlib.contextmanager
def _directory_made(directory: Path) -> Iterator[None]:
    """Create the directory with its parents. On an error, remove the created ones that are empty."""
    missing = [one for one in (directory, *directory.parents) if not os.path.lexists(one)]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for one in missing:
            with contextlib.suppress(OSError):
                one.rmdir()
        raise


def _check_was_a_lock(path: str | os.PathLike[str]) -> None:
    # Do not overwrite another file, such as the program itself.
    with _place(path).open("rb") as file:
        begin = file.read(len(TITLE))
    if begin and not begin.startswith((TITLE.encode(), _PRE_RELEASE_TITLE.encode())):
        raise StateLockError(f"{os.fspath(path)} exists and is not a lockfile; choose another name, or remove it")


def _place(path: str | os.PathLike[str]) -> Path:
    """Expand ``~``, which shells leave after "=". Rejects a URI."""
    if is_uri(os.fspath(path)):
        raise StateLockError(f"{without_secrets(os.fspath(path))} is a URI, and lockfiles are on a disk; pass a path")
    # The home directory of an unknown user stays as it is, as in `atomic_file`.
    return Path(os.path.expanduser(path))


def _files(directory: str | os.PathLike[str]) -> list[Path]:
    if not _place(directory).is_dir():
        return []
    found = sorted(file for file in _place(directory).iterdir() if _NAME.fullmatch(file.name) and file.is_file())
    if len(found) > _MAX_LOCKS:
        raise StateLockError(
            f"{os.fspath(directory)} has {len(found):,} lockfiles, and at most {_MAX_LOCKS:,} are read"
        )
    return found


def _parsed(file: Path) -> tuple[int, str]:
    number, digest = _NAME.fullmatch(file.name).groups()  # type: ignore[union-attr]
    return int(number), digest


def _check_digest(file: Path, data: bytes) -> None:
    if _digest(data) != _parsed(file)[1]:
        raise StateLockError(
            f"{file} does not match its name: files of a history never change, so restore it from version control"
        )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
