"""Spark's offset log as part of a savepoint: capture, restore, and the order of its sources.

A streaming query stores its progress in its checkpointLocation, in text files that never change:

    metadata                   {"id": "..."}: the identity of the query
    offsets/<batch>            written before a batch runs: "v1", the batch's configuration, a line per source
    commits/<batch>            written after it
    sources/<source>/<entry>   logs of sources that need one; sources are numbered, or named in Spark 4.2+
    source-order.json          written by this library: which source each line belongs to

A savepoint of epoch N contains the progress of batch N and nothing later. Of offsets and commits that is batch N and
the one before (Spark reads both when it starts). If commit N is missing, because batch N still runs, the restored query
replays batch N, and the epochs recognise it.

The file source keeps its own log of files: entry n has the files of offset {"logOffset": n}, and a file in the log is
never read again. Spark writes the entry before the offsets, so a copy of the whole log would hide files that no state
has seen: data loss. So entries after the logOffset of batch N are left out. Every tenth entry is `<n>.compact` and
repeats all before it (`spark.sql.streaming.fileSource.log.compactInterval`), so the last such entry and those after it
are captured. Spark deletes older ones, but none that its retained offsets need
(`spark.sql.streaming.minBatchesToRetain`). A log with a hole is rejected.

Not captured: `.crc` files (Spark treats them as optional) and temporary files. State of Spark's own stateful operators
in the same directory is rejected: it contains absolute paths and cannot be moved. Tests check the layout against a
running Spark.

**Offsets.** A file of `offsets` has a line for each source, by position or by name:

    v1                                       v2
    {"batchTimestampMs":...,"conf":{...}}    the same
    {"logOffset":4}                          0:{"logOffset":4}
    -                                        (a source without an offset has no line)

In v1 a line belongs to the source of its position; "-" means no offset yet. In v2 it starts with the name of the
source's log: its number, or the name from Spark's source evolution.

**Order.** `source-order.json` maps lines to directories, and has the columns that each source was read with. It is a
checksummed JSON file (`statebackend.checkpoint.fs.checksummed_json`):
`{"sources": [{"name", "uid", "log"}, ...], "schemas": [<Spark's JSON of a schema, or null>, ...]}`, with as many
schemas as sources. Without the file, lines are mapped by name in v2 and by position in v1, except that a DataFrame used
twice (`df.union(df)`) has two lines and one directory. If the mapping is ambiguous, capturing is rejected.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from attrs import asdict, frozen

from snapshots.errors import format_value
from statebackend.checkpoint.errors import CheckpointError, InvariantViolationError
from statebackend.checkpoint.fs.checksummed_json import checksummed_json, corrupt, read_checksummed_json
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.invariants import checked_relative_path
from statebackend.checkpoint.metadata import ReadSource, SourcePositions
from statebackend.streaming.runtime.source_offsets import NO_OFFSET, OffsetLines, is_json_object

SOURCE_ORDER_FILE_NAME: Final = "source-order.json"

Schema = Mapping[str, Any] | None
"""The schema of a source as Spark writes it in JSON; None if unknown."""

QUERY_ID_FILE_NAME: Final = "metadata"
"""The file with the id of the query."""

_FORMAT_VERSION: Final = 1
_MAX_BYTES: Final = 16 << 20
"""Spark's name of a source may list all partitions that it reads."""


@frozen
class SourceOrder:
    """The content of `source-order.json`: the sources in the order of the log's lines, and the schema of each."""

    sources: tuple[ReadSource, ...]
    schemas: tuple[Schema, ...]


def source_order(sources: Sequence[ReadSource], schemas: Sequence[Schema] = ()) -> bytes:
    """Encode the file; without schemas, none is known."""
    known = list(schemas or [None] * len(sources))
    if len(known) != len(sources):
        raise ValueError(f"{len(sources)} sources have {len(known)} schemas")
    return checksummed_json({"sources": [asdict(one) for one in sources], "schemas": known}, _FORMAT_VERSION)


def read_source_order(file_system: CheckpointFileSystem, log_directory: str = "") -> SourceOrder | None:
    """Read the file; None without one. Raises `CorruptJobIdentityError`."""
    path = f"{log_directory}/{SOURCE_ORDER_FILE_NAME}" if log_directory else SOURCE_ORDER_FILE_NAME
    if not file_system.exists(path):
        return None
    content: dict[str, Any] = read_checksummed_json(file_system, path, _FORMAT_VERSION, max_bytes=_MAX_BYTES)
    try:
        sources = tuple(ReadSource(**one) for one in content["sources"])
        schemas = tuple(content["schemas"])
    except (InvariantViolationError, KeyError, TypeError) as error:
        corrupt(file_system, path, f"is not valid: {error}")
    if len(schemas) != len(sources) or not all(isinstance(one, dict | None) for one in schemas):
        corrupt(file_system, path, "is not valid: its schemas are not those of its sources")
    return SourceOrder(sources, schemas)


STAGING_PREFIX = ".restoring-"
"""The prefix of a directory that is being written; its name and a random part follow."""

_BATCHES_KEPT = 2
_BATCH = re.compile(r"0|[1-9][0-9]{0,18}")
_ENTRY = re.compile(r"(0|[1-9][0-9]{0,18})(\.compact)?")
_RESTORABLE = re.compile(
    r"metadata|source-order\.json|(offsets|commits)/(0|[1-9][0-9]{0,18})|sources/[^/]+/[^/]+(/[^/]+)*"
)


class SourceProgressError(CheckpointError):
    """Spark's source log cannot be captured or restored; the message has the file and the fix."""


def read_offsets(spark_checkpoint_directory: str, batch_id: int) -> bytes:
    """Return the content of `offsets/<batch_id>`: the source positions at the end of that batch."""
    fs = _file_system(spark_checkpoint_directory)
    name = f"offsets/{batch_id}"
    if not fs.exists(name):
        raise SourceProgressError(
            f"{fs.location(name)} is missing: Spark has not planned batch {batch_id} in this directory, or has "
            f"deleted its log already (spark.sql.streaming.minBatchesToRetain)"
        )
    return fs.read_file(name)


def newest_committed_batch(spark_checkpoint_directory: str) -> int | None:
    """Return the last batch that Spark has committed; None without one."""
    names = [path.rpartition("/")[2] for path in _file_system(spark_checkpoint_directory).list_files("commits")]
    return max((int(name) for name in names if _BATCH.fullmatch(name)), default=None)


def newest_planned_batch(spark_checkpoint_directory: str) -> int | None:
    """Return the last batch whose offsets Spark has written, whether it ran or not; None without one."""
    names = [path.rpartition("/")[2] for path in _file_system(spark_checkpoint_directory).list_files("offsets")]
    return max((int(name) for name in names if _BATCH.fullmatch(name)), default=None)


def check_log_is_whole(spark_checkpoint_directory: str) -> None:
    """Raise `SourceProgressError` with the file if one is damaged that Spark reads when it continues the log."""
    planned = newest_planned_batch(spark_checkpoint_directory)
    if planned is None:
        return
    fs = _file_system(spark_checkpoint_directory)
    # Spark reads the batch before the newest one, too.
    batches = range(max(0, planned - 1), planned + 1)
    listed = {path.rpartition("/")[2] for path in fs.list_files("offsets")}
    for batch in batches:
        # A pipe or a directory of this name is reported when the job directory is listed.
        if str(batch) not in listed:
            read_offsets(spark_checkpoint_directory, batch)
    committed = newest_committed_batch(spark_checkpoint_directory)
    names = [QUERY_ID_FILE_NAME, *(f"offsets/{batch}" for batch in batches), f"commits/{committed}"]
    if not fs.exists(QUERY_ID_FILE_NAME):
        raise SourceProgressError(
            f"{fs.location(QUERY_ID_FILE_NAME)} is missing: Spark does not continue a log without it"
        )
    _check_whole(fs, (name for name in names if fs.exists(name)))
    entries = _source_entries(fs)
    newest = {source: _newest_entry(own) for source, own in entries.items() if _is_file_log(fs, source, own)}
    # A start with other sources may have rewritten the order; it then no longer fits these offsets.
    with contextlib.suppress(CheckpointError):
        for source, offset in _log_offsets(fs, planned, entries).items():
            newest[source] = max(offset, newest.get(source, -1))
    for source, entry in newest.items():
        _check_whole(fs, _cut_file_log(fs, source, entries.get(source, []), entry))


class SourceLogFiles(Mapping[str, bytes]):
    """Files of a source log: relative name to content, which is read on access.

    The log of a file source has a line for each file ever read, so only one file is in memory at a time.
    """

    def __init__(self, file_system: CheckpointFileSystem, names: Iterable[str]) -> None:
        self._file_system = file_system
        self._names = dict.fromkeys(names)

    def __getitem__(self, name: str) -> bytes:
        if name not in self._names:
            raise KeyError(name)
        return self._file_system.read_file(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def capture_source_progress(
    spark_checkpoint_directory: str, batch_id: int, *, has_foreign_state: bool = False
) -> Mapping[str, bytes]:
    """Return the files that a new query needs to continue after batch `batch_id`: relative name -> content.

    `spark_checkpoint_directory` is the query's checkpointLocation, a local path or a URI. The query may be running, and
    later batches may exist. A damaged commit and a damaged id are left out. With `has_foreign_state`, state of Spark's
    own operators may be there; an import reads it.

    Raises:
        SourceProgressError: The log of `batch_id` is incomplete or damaged, or the directory has state of Spark's own
            stateful operators.
    """
    fs = _file_system(spark_checkpoint_directory)
    if not has_foreign_state:
        _check_no_state(fs)
    batches = range(max(0, batch_id - _BATCHES_KEPT + 1), batch_id + 1)
    for batch in reversed(batches):
        read_offsets(spark_checkpoint_directory, batch)
    names = [f"offsets/{batch}" for batch in batches]
    _check_whole(fs, names)
    if fs.exists(QUERY_ID_FILE_NAME) and _damage(fs, QUERY_ID_FILE_NAME) is None:
        names.append(QUERY_ID_FILE_NAME)
    names += [SOURCE_ORDER_FILE_NAME] if fs.exists(SOURCE_ORDER_FILE_NAME) else []
    # Spark replays a batch without a commit, and the epochs recognise the replay.
    commits = (f"commits/{batch}" for batch in batches)
    names += [name for name in commits if fs.exists(name) and _damage(fs, name) is None]

    entries = _source_entries(fs)
    log_offsets = _log_offsets(fs, batch_id, entries)
    for source in sorted({*entries, *log_offsets}):
        own = entries.get(source, [])
        if source in log_offsets:
            cut = _cut_file_log(fs, source, own, log_offsets[source])
            _check_whole(fs, cut)
            names += cut
        else:
            names += [f"sources/{source}/{name}" for name in own]
    return SourceLogFiles(fs, names)


def new_source_log(positions: SourcePositions) -> Mapping[str, bytes]:
    """Return the files of a query that continues at positions of another runtime."""
    return {
        QUERY_ID_FILE_NAME: new_query_id(),
        f"offsets/{positions.batch_id}": positions.offsets,
        f"commits/{positions.batch_id}": b'v1\n{"nextBatchWatermarkMs":0}',
    }


def whole_source_log(spark_checkpoint_directory: str) -> SourceLogFiles:
    """Return all files of a log that no query uses, of every batch that Spark retains.

    Raises `SourceProgressError` if the directory has state of Spark's own stateful operators.
    """
    fs = _file_system(spark_checkpoint_directory)
    _check_no_state(fs)
    return SourceLogFiles(
        fs, (name for name in fs.list_files() if _RESTORABLE.fullmatch(name) and not _is_hidden(name))
    )


def restore_source_progress(files: Mapping[str, bytes], spark_checkpoint_directory: str) -> None:
    """Make `spark_checkpoint_directory` the checkpointLocation of a query that continues where `files` were captured.

    The query has a new id: Spark stops a running query when another one of its id starts. On a local disk all files
    appear at once.

    Raises:
        SourceProgressError: The directory is not empty, or a file name is not one of a source log.
    """
    for name in files:
        checked_relative_path(name)
        if not _RESTORABLE.fullmatch(name) or _is_hidden(name):
            raise SourceProgressError(f"{name!r} is not the name of a file of Spark's source log; nothing was restored")
    if not any(name.startswith("offsets/") for name in files):
        raise SourceProgressError("the source progress lacks `offsets`; nothing was restored")

    target = _file_system(spark_checkpoint_directory)
    if target.list_files(include_temporary=True) or target.list_directories():
        raise SourceProgressError(
            f"{target.uri} is not empty; the progress of a savepoint can only be restored into a new directory. "
            f"Use a new job directory, or start without the savepoint to continue in this one."
        )
    restored = ((name, content) for name, content in files.items() if name != QUERY_ID_FILE_NAME)
    appear_at_once(chain(restored, [(QUERY_ID_FILE_NAME, new_query_id())]), target.uri)


def new_query_id() -> bytes:
    """Return the content of `metadata`, with an id that no other query has."""
    return json.dumps({"id": str(uuid.uuid4())}).encode()


def appear_at_once(files: Iterable[tuple[str, bytes]], directory: str) -> None:
    """Write a directory that is absent or empty; on a local disk it appears with all its files."""
    parent_uri, _, name = directory.rstrip("/").rpartition("/")
    parent = CheckpointFileSystem.from_uri(parent_uri or "/")
    staging = f"{STAGING_PREFIX}{name}-{uuid.uuid4().hex}"
    try:
        for file_name, content in files:
            parent.write_file(f"{staging}/{file_name}", content)
        parent.move_directory(staging, name)
    except BaseException:
        parent.delete_directory(staging)
        raise


def _file_system(directory: str) -> CheckpointFileSystem:
    # Spark also writes local URIs with a single slash, file:/tmp/x.
    if directory.startswith("file:/") and not directory.startswith("file://"):
        directory = directory[len("file:") :]
    return CheckpointFileSystem.from_uri(directory)


def _is_hidden(name: str) -> bool:
    return any(segment.startswith(".") or segment.endswith((".crc", ".tmp")) for segment in name.split("/"))


def _source_entries(fs: CheckpointFileSystem) -> dict[str, list[str]]:
    """Directory below `sources` -> the names of its files."""
    entries: dict[str, list[str]] = {}
    for path in fs.list_files("sources"):
        _, source, *rest = path.split("/")
        if rest and not _is_hidden(path):
            entries.setdefault(source, []).append("/".join(rest))
    return entries


def _check_no_state(fs: CheckpointFileSystem) -> None:
    if "state" in fs.list_directories():
        raise SourceProgressError(
            f"{fs.location('state')} has state of Spark's own stateful operators (a streaming aggregation, join or "
            f"dropDuplicates before key_by). Spark cannot move it to another directory, so a savepoint would lose it. "
            f"Move that step into a function of this job."
        )


def _log_offsets(fs: CheckpointFileSystem, batch_id: int, entries: Mapping[str, list[str]]) -> dict[str, int]:
    """Directory below `sources` -> the last entry of its offset, for the logs of file sources."""
    name, order = f"offsets/{batch_id}", read_source_order(fs)
    offsets = fs.read_file(name)
    if order is None:
        return _log_offsets_by_line(fs, name, offsets, entries)
    return _log_offsets_in_order(fs, name, offsets, entries, order.sources)


def _log_offsets_in_order(
    fs: CheckpointFileSystem, name: str, offsets: bytes, entries: Mapping[str, list[str]], order: Sequence[ReadSource]
) -> dict[str, int]:
    """The offsets of a log with `source-order.json`."""
    version, lines = _offset_lines(fs, name, offsets)
    if version == "v1" and len(lines) != len(order):
        raise SourceProgressError(
            f"{fs.location(name)} has {len(lines)} offsets, and {fs.location(SOURCE_ORDER_FILE_NAME)} has "
            f"{len(order)} sources: the files do not belong together. Restore both from a backup"
        )
    logs = [one.log or "" for one in order]
    found: dict[str, int] = {}
    for log, line in zip(logs, OffsetLines.of(offsets).by_log(logs), strict=True):
        offset = _log_offset(line)
        # A source without an offset may have started its log; only the log of a file source is left out then.
        if offset is not None and (offset >= 0 or _is_file_log(fs, log, entries.get(log, []))):
            found[log] = offset
    return found


def _log_offsets_by_line(
    fs: CheckpointFileSystem, name: str, offsets: bytes, entries: Mapping[str, list[str]]
) -> dict[str, int]:
    """The offsets of a log without `source-order.json`."""
    file_logs = sorted(source for source, names in entries.items() if _is_file_log(fs, source, names))
    if not file_logs:
        return {}
    version, lines = _offset_lines(fs, name, offsets)
    if version == "v2":
        named = dict(line.split(":", 1) for line in lines if ":" in line)
        found = {source: _log_offset(named.get(source, NO_OFFSET)) for source in file_logs}
        missing = [source for source, offset in found.items() if offset is None]
        if not missing:
            return {source: offset for source, offset in found.items() if offset is not None}
        raise SourceProgressError(f"{fs.location(name)} has no logOffset for sources/{missing[0]}, which is a file log")

    by_line = [_log_offset(line) for line in lines]
    with_log = {str(position) for position, offset in enumerate(by_line) if offset is not None and offset >= 0}
    # A source without files has no directory, or one that these offsets do not contain.
    if with_log <= set(file_logs) and all(
        source.isdecimal() and int(source) < len(by_line) and by_line[int(source)] is not None for source in file_logs
    ):
        return {source: offset for source in file_logs if (offset := by_line[int(source)]) is not None}
    values = {offset for offset in by_line if offset is not None}
    if len(values) == 1:
        return dict.fromkeys(file_logs, values.pop())
    raise SourceProgressError(
        f"{fs.location(name)} has {len(lines)} offsets, and it is ambiguous which of them belong to "
        f"{', '.join(f'sources/{source}' for source in file_logs)}: the query uses one streaming DataFrame more than "
        f"once. Read the source once for each use, or start the job with "
        f"spark.sql.streaming.offsetLog.formatVersion=2, which names the sources."
    )


def _check_whole(fs: CheckpointFileSystem, names: Iterable[str]) -> None:
    for name in names:
        damage = _damage(fs, name)
        if damage is not None:
            raise SourceProgressError(
                f"{fs.location(name)} is damaged: {damage}. Restore it from a backup, or roll back to an older "
                f"checkpoint"
            )


def _damage(fs: CheckpointFileSystem, name: str) -> str | None:
    """Why Spark cannot read a file of its log, None if it can."""
    kind = name.partition("/")[0]
    content = fs.read_file(name)
    if kind == "offsets":
        return OffsetLines.of(content).damage
    if kind == "sources":
        lines = _entry_lines(fs, name)
        found = [_entry_of(line) for line in lines or ()]
        number, is_compact = _newest_entry([name.rpartition("/")[2]]), name.endswith(".compact")
        # Spark writes no entry without files. It would read those of an empty one again.
        is_whole = bool(found) and all(
            entry is not None and (0 <= entry <= number if is_compact else entry == number) for entry in found
        )
        return None if is_whole else "it is not a whole entry of the log of a file source"
    first, _, rest = content.decode("utf-8", "replace").partition("\n")
    if kind == "commits" and not re.fullmatch(r"v[0-9]+", first):
        return "its first line is not a version" if first else "it is empty"
    text = rest if kind == "commits" else first
    if not (kind == "commits" and not text) and not is_json_object(text):
        return "it is not a whole JSON object"
    if kind == QUERY_ID_FILE_NAME and not isinstance(_parsed(text).get("id"), str):
        return "it has no id of a query"
    return None


def _offset_lines(fs: CheckpointFileSystem, name: str, offsets: bytes) -> tuple[str, list[str]]:
    version, _, rest = offsets.decode("utf-8", "replace").partition("\n")
    if version not in ("v1", "v2"):
        raise SourceProgressError(
            f"{fs.location(name)} has format {format_value(version, 20)}; only v1 and v2 are known, and the log of a "
            f"file source cannot be cut without reading it"
        )
    return version, rest.split("\n")[1:]


def _log_offset(line: str) -> int | None:
    """n for {"logOffset": n}, -1 for a source without an offset, None for another kind of source."""
    if line == NO_OFFSET:
        return -1
    value = _parsed(line)
    offset = value.get("logOffset") if isinstance(value, dict) and len(value) == 1 else None
    return offset if isinstance(offset, int) and not isinstance(offset, bool) else None


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _is_file_log(fs: CheckpointFileSystem, source: str, names: list[str]) -> bool:
    if not names or not all(_ENTRY.fullmatch(name) for name in names):
        return False
    # One of them may be damaged.
    found = (_entry_lines(fs, f"sources/{source}/{name}") for name in names)
    return any(lines and all(_entry_of(line) is not None for line in lines) for lines in found)


def _newest_entry(names: Iterable[str]) -> int:
    return max(int(name.partition(".")[0]) for name in names)


def _entry_lines(fs: CheckpointFileSystem, path: str) -> list[str] | None:
    version, *lines = fs.read_file(path).decode("utf-8", "replace").split("\n")
    return [line for line in lines if line] if version == "v1" else None


def _entry_of(line: str) -> int | None:
    """The entry that a line of a file log belongs to; None for any other line."""
    value = _parsed(line)
    if not isinstance(value, dict) or not {"path", "timestamp", "batchId"} <= value.keys():
        return None
    entry = value["batchId"]
    return entry if isinstance(entry, int) and not isinstance(entry, bool) else None


def _cut_file_log(fs: CheckpointFileSystem, source: str, names: list[str], last: int) -> list[str]:
    """The names of the entries of a file log up to `last`, whole."""
    if last < 0:
        return []
    compact: dict[int, str] = {}
    plain: dict[int, str] = {}
    for name in names:
        number, _, suffix = name.partition(".")
        (compact if suffix else plain)[int(number)] = f"sources/{source}/{name}"

    start = max((entry for entry in compact if entry <= last), default=-1)
    wanted = [compact[start]] if start >= 0 else []
    following = range(start + 1, last + 1)
    if all(entry in plain for entry in following):
        wanted += [plain[entry] for entry in following]
        return wanted
    missing = next(entry for entry in following if entry not in plain)
    raise SourceProgressError(
        f"{fs.location(f'sources/{source}/{missing}')} is missing: without it the files of offset {last} are unknown, "
        f"and a query cannot continue at the right file"
    )
