"""Lock files on a disk: one beside the program, and a directory with every lock that there has been.

A directory of history holds the locks of releases in the order in which they came, `00001-<12 hex>.lock` and so on; the
digits behind the number are of the file's own SHA-256. Two branches that both add the next one add two files with
different names, so that git merges them. A file of history never changes, and is added only if its bytes are in no
other.

What is in a lock: of each operator the schemas of its states, in the form in which a checkpoint has them.

A start asks stored state for its operators, its key groups, and for what the states of each operator are
(`statebackend.savepoint.restored_state`). A lock answers that as a savepoint does, so that both are judged by the same
code. Operators and states are in the order of their names: the order of a program is no part of what is stored.

The lines of a lock that a person reads: one for an operator, its key, each state, type, field and constant.

A line says all about one thing, so that the difference of two locks is a list of what changed. The lines are made of
the snapshots alone, and are no way back to them: what is judged are the bytes beneath. Names are JSON texts. What
cannot be printed is escaped, so that no line of a lock looks like another or like none.

The lock file as text, and back: every line is checked, and what is not as it was written is rejected.

    lock     := title notes "max_parallelism " number NL operator* NL bytes* "end" NL
    title    := "statebackend state lock, format 1" NL
    notes    := two lines that begin with "#", always the same
    operator := NL "operator " name NL ("  " what the line says NL)*
    bytes    := "bytes of " name " sealed " 64 hexadecimal digits NL ("  keyed " base64 NL)* ("  operator " base64 NL)*

The bytes of an operator are those of a checkpoint's handles without entries: `keyed` is the meta data of keyed state
(`statebackend.state.state_meta`), `operator` that of operator state, if there is any
(`statebackend.state.operator_state_handles`); a line has 72 bytes of them. They hold the serializer snapshots,
and a compatibility result needs nothing else.

The seal is the SHA-256 of the operator's lines, its bytes and ``max_parallelism``. So lines that a person has edited,
or that git has merged, are told from those that the command has written; and since each operator has its own, a merge
of changes to different operators is a lock again. A lock is read by taking it apart, and is right if putting the parts
together again gives the same text: nothing in it is left unread.
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
    "TITLE",
    "WRITE_ANEW",
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
    """The states of one operator; ``keyed`` is the meta data of a snapshot without entries.

    The states of both are in the order of their names.
    """

    uid: str
    keyed: KeyedStateMeta
    operator_states: tuple[OperatorStateMeta, ...] = ()


@frozen
class StateLock:
    """What a job stores; ``where`` is what errors call it by."""

    max_parallelism: int
    operators: tuple[LockedOperator, ...]
    where: str = field(default="the lock", eq=False)

    @property
    def operator_uids(self) -> Sequence[str]:
        """The operators that have state, by uid, in order."""
        return [one.uid for one in self.operators]

    def keyed_metas_of(self, uid: str) -> Sequence[KeyedStateMeta]:
        """What the keyed state of an operator is, if it has some."""
        known = self._by_uid.get(uid)
        return () if known is None else (known.keyed,)

    def operator_state_metas_of(self, uid: str) -> Sequence[OperatorStateMeta]:
        """What the operator state of an operator is."""
        known = self._by_uid.get(uid)
        return () if known is None else known.operator_states

    @property
    def _by_uid(self) -> Mapping[str, LockedOperator]:
        return {one.uid: one for one in self.operators}


def operator_line(uid: str) -> str:
    """The line that an operator begins with."""
    return f"operator {_name(uid)}"


def operator_lines(operator: LockedOperator) -> list[str]:
    """All lines of an operator."""
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
    """The text in one line, with escapes for what is not printed as itself."""
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _role_lines(snapshots: Mapping[str, TypeSerializerSnapshot[object]]) -> Iterator[str]:
    for role, snapshot in snapshots.items():
        yield from _type_lines(f"    {role}", describe_type(snapshot))


def _type_lines(place: str, described: TypeDescription) -> Iterator[str]:
    # Why a type is unknown is said in words that may change from release to release, and the same state must give the
    # same lock.
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
"""A lock of more bytes is neither written nor read: the states of one operator take a few thousand."""

WRITE_ANEW: Final = "write it again: statebackend lock --job MODULE:FACTORY --output"
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


_NAME: Final = re.compile(r"(\d{5})-([0-9a-f]{12})\.lock")
_MAX_LOCKS: Final = 10_000


def is_lock_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file at that path, which no savepoint is: those are directories."""
    return not is_uri(os.fspath(path)) and _place(path).is_file()


def read_lock(path: str | os.PathLike[str]) -> StateLock:
    """The lock in a file. Raises `StateLockError` if there is none, `OSError` where it cannot be read."""
    try:
        with _place(path).open("rb") as file:
            # One byte more, by which a file that is too large is told.
            data = file.read(MAX_LOCK_BYTES + 1)
    except FileNotFoundError as error:
        raise StateLockError(
            f"there is no lock {os.fspath(path)}; {WRITE_ANEW.replace(' anew', '')} {os.fspath(path)}"
        ) from error
    return lock_from_bytes(data, os.fspath(path))


def would_change(path: str | os.PathLike[str], lock: StateLock) -> bool:
    """Whether the file has other bytes than those of the lock, or is not there."""
    if not is_lock_file(path):
        return True
    with _place(path).open("rb") as file:
        return file.read(MAX_LOCK_BYTES + 1) != lock_to_bytes(lock)


def write_lock(path: str | os.PathLike[str], lock: StateLock) -> bool:
    """Writes the file, complete or not at all; returns whether its bytes are others than before.

    A lock that is there is replaced, and one that somebody has edited. Raises `StateLockError` for a file that never
    was one and for a lock that could not be read again, and `OSError`, as `atomic_file`, where it cannot be written.
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
    """Writes the file and adds it to a history, if one is named: both or neither; returns what either function does.

    Raises as `write_lock` and `add_to_history`.
    """
    if history is None:
        return write_lock(path, lock), None
    # The history comes first: what is added to it can be taken back, and what replaces a file cannot.
    with _directory_made(_place(history)):
        added = add_to_history(history, lock)
        try:
            return write_lock(path, lock), added
        except BaseException:
            if added is not None:
                added.unlink(missing_ok=True)
            raise


def add_to_history(directory: str | os.PathLike[str], lock: StateLock) -> Path | None:
    """Adds a lock to a history, which is made if there is none; returns its file, None if it has the lock already.

    Raises `StateLockError` if its file is there and not as it was written.
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
    """The locks of a history, the newest first, one at a time.

    Raises `StateLockError` for a directory without any, and for a file that is not the one its name says.
    """
    files = _files(directory)
    if not files:
        raise StateLockError(
            f"there is no history of locks at {os.fspath(directory)}: statebackend lock --history begins one"
        )
    for file in reversed(files):
        lock = read_lock(file)
        _check_digest(file, file.read_bytes())
        yield file, lock


@contextlib.contextmanager
def _directory_made(directory: Path) -> Iterator[None]:
    """Makes it, with what is missing above it; an error within the context takes away what was made, where empty."""
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
    # Whatever else is there is somebody's: a program whose name was given for that of its lock.
    with _place(path).open("rb") as file:
        begin = file.read(len(TITLE))
    if begin and begin != TITLE.encode():
        raise StateLockError(f"{os.fspath(path)} is there and no lock of state; give another name, or remove it")


def _place(path: str | os.PathLike[str]) -> Path:
    """The path, which may begin with ``~``: shells leave that behind "=" as it is. A URI is a `StateLockError`."""
    if is_uri(os.fspath(path)):
        raise StateLockError(f"{without_secrets(os.fspath(path))} is a URI, and lock files are on a disk; give a path")
    # That of nobody's directory is a name as any other, as it is to whole files.
    return Path(os.path.expanduser(path))


def _files(directory: str | os.PathLike[str]) -> list[Path]:
    if not _place(directory).is_dir():
        return []
    found = sorted(file for file in _place(directory).iterdir() if _NAME.fullmatch(file.name) and file.is_file())
    if len(found) > _MAX_LOCKS:
        raise StateLockError(f"{os.fspath(directory)} has {len(found):,} locks, and {_MAX_LOCKS:,} at most are judged")
    return found


def _parsed(file: Path) -> tuple[int, str]:
    number, digest = _NAME.fullmatch(file.name).groups()  # type: ignore[union-attr]
    return int(number), digest


def _check_digest(file: Path, data: bytes) -> None:
    if _digest(data) != _parsed(file)[1]:
        raise StateLockError(
            f"{file} is not the lock that its name says: files of a history never change, so take it back from version "
            f"control"
        )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
