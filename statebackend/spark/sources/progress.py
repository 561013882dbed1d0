"""Spark's source log as part of a savepoint.

How far a streaming query has read lives in its checkpointLocation, in text files that only ever appear:

    metadata                   {"id": "..."}: the identity of the query
    offsets/<batch>            written before a batch runs: "v1", the batch's configuration, a line per source
    commits/<batch>            written after it
    sources/<source>/<entry>   logs of sources that need one; sources are numbered, or named in Spark 4.2+

A savepoint of epoch N needs Spark's word on what batch N had read, and nothing later. Of offsets and commits
that is batch N and the one before (Spark reads both at its start). If commit N is missing, as it is while batch N
still runs, the restored query replays batch N, and the state log recognises it.

The file source keeps its own log of files seen: entry n holds the files with which offset {"logOffset": n} came
up, and a file in the log is never read again. The log runs ahead of the offsets: a batch being planned
writes its entry first. Copied as it stands it would therefore hide files from the restored job that no state has seen:
data loss. So entries after the logOffset of batch N are left out.
Every tenth entry is `<n>.compact` and repeats all before it (`spark.sql.streaming.fileSource.log.compactInterval`),
so the last such entry and those after it are captured. Spark deletes older ones, but none that the offsets it still
retains need (`spark.sql.streaming.minBatchesToRetain`); a log with a hole is rejected.

Which line of the offsets belongs to which directory, `source-order.json` says (see `source_order_file`). In a log
without it: in format v2 each line starts with the source's name; in v1 it is the position, except that a DataFrame used
twice (`df.union(df)`) has two lines and one directory. Where that cannot be resolved, capturing is rejected.

Left out: `.crc` files (Spark treats them as optional) and temporary files. State that Spark's own stateful
operators keep in the same directory cannot be moved (it holds absolute paths), so its presence is rejected, not
dropped.

The layout was read off Spark 4.3's own files, and is checked against a running Spark by the tests.

The content of a file of Spark's `offsets`: a line for each source, by position or by name (pure).

    v1                                       v2
    {"batchTimestampMs":...,"conf":{...}}    the same
    {"logOffset":4}                          0:{"logOffset":4}
    -                                        (a source without an offset has no line)

In v1 a line belongs to the source of its position, and a source that has no offset yet has "-". In v2 it starts with
the name of the source's own log: its number, or the name that it was given by Spark's own source evolution.

Whose each line of a source log of Spark is, and what columns it was read with: `source-order.json` in the log.

Spark's log knows its sources by position. A checkpoint says whose its own positions are; but a log is there before the
first checkpoint, and when it is put in another order the checkpoints are those of the former one. So the file lies in
the log, appears with it, and Spark lets it be. A log of an earlier release is without it, and in the order of the
newest checkpoint.

It is a sealed JSON file (`statebackend.checkpoint.fs.checksummed_json`):
`{"sources": [{"name", "uid", "log"}, ...], "schemas": [<Spark's JSON of a schema, or null>, ...]}`.
Version 1 has no schemas. Invariant: there are as many as sources.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import asdict, frozen

from statebackend.checkpoint.errors import CheckpointError, InvariantViolationError
from statebackend.checkpoint.fs.checksummed_json import checksummed_json, corrupt, read_checksummed_json
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.invariants import checked_relative_path
from statebackend.checkpoint.metadata import ReadSource
from statebackend.streaming.errors import format_value

__all__ = [
    "NO_OFFSET",
    "SOURCE_ORDER_FILE_NAME",
    "STAGING_PREFIX",
    "OffsetLines",
    "Schema",
    "SourceLogFiles",
    "SourceOrder",
    "SourceProgressError",
    "appear_at_once",
    "capture_source_progress",
    "check_log_is_whole",
    "is_json_object",
    "newest_committed_batch",
    "newest_planned_batch",
    "read_offsets",
    "read_source_order",
    "restore_source_progress",
    "source_order",
    "whole_source_log",
]


NO_OFFSET: Final = "-"
"""The line of a source that has no offset yet."""


@frozen
class OffsetLines:
    """The lines of one file. ``version`` is its first line, ``batch`` the second, about the batch itself."""

    version: str
    batch: str
    lines: tuple[str, ...]

    @property
    def damage(self) -> str | None:
        """Why Spark cannot read the file, None if it can or if the format is unknown."""
        if not self.version:
            return "it is empty"
        if not re.fullmatch("v[0-9]+", self.version):
            return f"its first line is {format_value(self.version, 20)} and no version"
        if self.version not in ("v1", "v2"):
            return None
        if not is_json_object(self.batch):
            return "its second line is not a whole JSON object"
        if self.version == "v1" and not self.lines:
            return "it has no offsets"
        offsets = self.lines if self.version == "v1" else [line.partition(":")[2] for line in self.lines]
        is_cut = any(one.startswith("{") and not is_json_object(one) for one in offsets)
        return "one of its offsets is not whole" if is_cut else None

    @classmethod
    def of(cls, content: bytes) -> OffsetLines:
        """Those of a file, damaged or not."""
        version, _, rest = content.decode("utf-8", "surrogateescape").partition("\n")
        batch, *lines = rest.split("\n")
        return cls(version, batch, tuple(lines))

    def by_log(self, logs: Sequence[str]) -> tuple[str, ...]:
        """The offset of each source, whose logs have these names in the order of their positions."""
        if self.version == "v1":
            return self.lines
        named = dict(line.split(":", 1) for line in self.lines if ":" in line)
        return tuple(named.get(log, NO_OFFSET) for log in logs)

    def with_offsets(self, offsets: Sequence[str], logs: Sequence[str]) -> bytes:
        """The file with these offsets for sources whose logs have these names."""
        lines: Sequence[str] = offsets
        if self.version != "v1":
            named = {log: offset for log, offset in zip(logs, offsets, strict=True) if offset != NO_OFFSET}
            lines = [f"{log}:{offset}" for log, offset in named.items()]
        return "\n".join((self.version, self.batch, *lines)).encode("utf-8", "surrogateescape")


def is_json_object(text: str) -> bool:
    """Whether a line is one JSON object, whole."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


SOURCE_ORDER_FILE_NAME: Final = "source-order.json"

Schema = Mapping[str, Any] | None
"""The schema of a source as Spark writes it in JSON; None where it is not known."""

_FORMAT_VERSION: Final = 2
_MAX_BYTES: Final = 16 << 20
"""Spark's name of a source may list all partitions that it reads."""


@frozen
class SourceOrder:
    """What a file says: the sources in the order of the log's lines, and the schema of each."""

    sources: tuple[ReadSource, ...]
    schemas: tuple[Schema, ...]


def source_order(sources: Sequence[ReadSource], schemas: Sequence[Schema] = ()) -> bytes:
    """The content of the file; without schemas, none is known."""
    known = list(schemas or [None] * len(sources))
    if len(known) != len(sources):
        raise ValueError(f"{len(sources)} sources have {len(known)} schemas")
    return checksummed_json({"sources": [asdict(one) for one in sources], "schemas": known}, _FORMAT_VERSION)


def read_source_order(file_system: CheckpointFileSystem, log_directory: str = "") -> SourceOrder | None:
    """What a file says; None if there is none. Raises `CorruptJobIdentityError`."""
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
"""What a directory is called while it is being written, followed by its name and something random."""

_BATCHES_KEPT = 2
_BATCH = re.compile(r"0|[1-9][0-9]{0,18}")
_ENTRY = re.compile(r"(0|[1-9][0-9]{0,18})(\.compact)?")
_RESTORABLE = re.compile(
    r"metadata|source-order\.json|(offsets|commits)/(0|[1-9][0-9]{0,18})|sources/[^/]+/[^/]+(/[^/]+)*"
)


class SourceProgressError(CheckpointError):
    """Spark's source log cannot be captured or restored; the message says which file and what to do."""


def read_offsets(spark_checkpoint_directory: str, batch_id: int) -> bytes:
    """The content of `offsets/<batch_id>`: what the sources had reached at the end of that batch."""
    fs = _file_system(spark_checkpoint_directory)
    name = f"offsets/{batch_id}"
    if not fs.exists(name):
        raise SourceProgressError(
            f"{fs.location(name)} is missing: Spark has not planned batch {batch_id} in this directory, or has "
            f"deleted its log already (spark.sql.streaming.minBatchesToRetain)"
        )
    return fs.read_file(name)


def newest_committed_batch(spark_checkpoint_directory: str) -> int | None:
    """The last batch that Spark knows to be completed, None if there is none or the directory is absent."""
    names = [path.rpartition("/")[2] for path in _file_system(spark_checkpoint_directory).list_files("commits")]
    return max((int(name) for name in names if _BATCH.fullmatch(name)), default=None)


def newest_planned_batch(spark_checkpoint_directory: str) -> int | None:
    """The last batch whose offsets Spark has written, whether it ran or not; None if there is none."""
    names = [path.rpartition("/")[2] for path in _file_system(spark_checkpoint_directory).list_files("offsets")]
    return max((int(name) for name in names if _BATCH.fullmatch(name)), default=None)


def check_log_is_whole(spark_checkpoint_directory: str) -> None:
    """Raises `SourceProgressError`, naming the file, if one is damaged that Spark reads when it continues the log."""
    planned = newest_planned_batch(spark_checkpoint_directory)
    if planned is None:
        return
    fs = _file_system(spark_checkpoint_directory)
    committed = newest_committed_batch(spark_checkpoint_directory)
    names = ["metadata", f"offsets/{planned - 1}", f"offsets/{planned}", f"commits/{committed}"]
    for source, own in _source_entries(fs).items():
        entries = {int(name.partition(".")[0]): name for name in own if _ENTRY.fullmatch(name)}
        if _is_file_log(fs, source, own):
            names.append(f"sources/{source}/{entries[max(entries)]}")
    _check_whole(fs, (name for name in names if fs.exists(name)))


class SourceLogFiles(Mapping[str, bytes]):
    """Files of a source log: relative name to content, which is read when it is asked for.

    The log of a file source has a line for each file ever read, so its content is held one file at a time.
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


def capture_source_progress(spark_checkpoint_directory: str, batch_id: int) -> Mapping[str, bytes]:
    """What a new query needs to go on after batch `batch_id`: relative file name -> content.

    `spark_checkpoint_directory` is the query's checkpointLocation, a local path or a URI. The query may be
    running, and later batches may exist. A commit that is damaged is left out. Raises `SourceProgressError` when
    the log of `batch_id` is incomplete or damaged, or when the directory holds state of Spark's own stateful operators.
    """
    fs = _file_system(spark_checkpoint_directory)
    _check_no_state(fs)
    offsets = read_offsets(spark_checkpoint_directory, batch_id)
    batches = range(max(0, batch_id - _BATCHES_KEPT + 1), batch_id + 1)
    for earlier in batches:
        read_offsets(spark_checkpoint_directory, earlier)
    names = ["metadata", *(f"offsets/{batch}" for batch in batches)]
    _check_whole(fs, names)
    names += [SOURCE_ORDER_FILE_NAME] if fs.exists(SOURCE_ORDER_FILE_NAME) else []
    # Spark replays a batch whose commit is missing, and the replay is recognised.
    commits = (f"commits/{batch}" for batch in batches)
    names += [name for name in commits if fs.exists(name) and _damage(fs, name) is None]

    entries = _source_entries(fs)
    order = read_source_order(fs)
    if order is None:
        log_offsets = _log_offsets(fs, f"offsets/{batch_id}", offsets, entries)
    else:
        log_offsets = _log_offsets_in_order(fs, f"offsets/{batch_id}", offsets, entries, order.sources)
    for source in sorted({*entries, *log_offsets}):
        own = entries.get(source, [])
        if source in log_offsets:
            cut = _cut_file_log(fs, source, own, log_offsets[source])
            _check_whole(fs, cut[-1:])
            names += cut
        else:
            names += [f"sources/{source}/{name}" for name in own]
    return SourceLogFiles(fs, names)


def whole_source_log(spark_checkpoint_directory: str) -> SourceLogFiles:
    """All files of a log that no query runs on, of every batch that Spark still knows.

    Raises `SourceProgressError` when the directory holds state of Spark's own stateful operators.
    """
    fs = _file_system(spark_checkpoint_directory)
    _check_no_state(fs)
    return SourceLogFiles(
        fs, (name for name in fs.list_files() if _RESTORABLE.fullmatch(name) and not _is_hidden(name))
    )


def restore_source_progress(files: Mapping[str, bytes], spark_checkpoint_directory: str) -> None:
    """Make `spark_checkpoint_directory` the checkpointLocation of a query that goes on where `files` were captured.

    The directory must be absent or empty: `SourceProgressError` otherwise, also for a file name that is not one of
    a source log or leads out of the directory. All files appear at once on a local disk.
    """
    for name in files:
        checked_relative_path(name)
        if not _RESTORABLE.fullmatch(name) or _is_hidden(name):
            raise SourceProgressError(f"{name!r} is not the name of a file of Spark's source log; nothing was restored")
    if "metadata" not in files or not any(name.startswith("offsets/") for name in files):
        raise SourceProgressError("the source progress lacks `metadata` or `offsets`; nothing was restored")

    target = _file_system(spark_checkpoint_directory)
    if target.list_files(include_temporary=True) or target.list_directories():
        raise SourceProgressError(
            f"{target.uri} is not empty; the progress of a savepoint can only be restored into a new directory. "
            f"Give the job a new job directory, or start it without a savepoint to go on where it is."
        )
    appear_at_once(files, target.uri)


def appear_at_once(files: Mapping[str, bytes], directory: str) -> None:
    """Writes a directory that is not there yet, or is empty; on a local disk it appears with all its files."""
    parent_uri, _, name = directory.rstrip("/").rpartition("/")
    parent = CheckpointFileSystem.from_uri(parent_uri or "/")
    staging = f"{STAGING_PREFIX}{name}-{uuid.uuid4().hex}"
    try:
        for file_name, content in files.items():
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
            f"{fs.location('state')} holds state of Spark's own stateful operators (a streaming aggregation, join or "
            f"dropDuplicates before key_by); Spark cannot move that to another directory, so a savepoint would lose "
            f"it. Move that step into a function of this job."
        )


def _log_offsets_in_order(
    fs: CheckpointFileSystem, name: str, offsets: bytes, entries: Mapping[str, list[str]], order: Sequence[ReadSource]
) -> dict[str, int]:
    """As `_log_offsets`, for a log that says whose its lines are."""
    version, lines = _offset_lines(fs, name, offsets)
    if version == "v1" and len(lines) != len(order):
        raise SourceProgressError(
            f"{fs.location(name)} has {len(lines)} offsets, and {fs.location(SOURCE_ORDER_FILE_NAME)} says that it is "
            f"of {len(order)} sources: the files do not belong together. Bring back both from a backup"
        )
    logs = [one.log or "" for one in order]
    found: dict[str, int] = {}
    for log, line in zip(logs, OffsetLines.of(offsets).by_log(logs), strict=True):
        offset = _log_offset(line)
        # A source without an offset may have begun its log, which only a log of files is left out for.
        if offset is not None and (offset >= 0 or _is_file_log(fs, log, entries.get(log, []))):
            found[log] = offset
    return found


def _log_offsets(
    fs: CheckpointFileSystem, name: str, offsets: bytes, entries: Mapping[str, list[str]]
) -> dict[str, int]:
    """Directory below `sources` -> the last entry its offset covers, for those that hold a log of files."""
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
    # A source that has not seen a file yet has no directory, or one that is not in these offsets.
    if with_log <= set(file_logs) and all(
        source.isdecimal() and int(source) < len(by_line) and by_line[int(source)] is not None for source in file_logs
    ):
        return {source: offset for source in file_logs if (offset := by_line[int(source)]) is not None}
    values = {offset for offset in by_line if offset is not None}
    if len(values) == 1:
        return dict.fromkeys(file_logs, values.pop())
    raise SourceProgressError(
        f"{fs.location(name)} has {len(lines)} offsets, and it cannot be told which of them belong to "
        f"{', '.join(f'sources/{source}' for source in file_logs)}, because one streaming DataFrame is used more than "
        f"once in the query. Read the source once for each use, or start the job with "
        f"spark.sql.streaming.offsetLog.formatVersion=2, which names the sources."
    )


def _check_whole(fs: CheckpointFileSystem, names: Iterable[str]) -> None:
    for name in names:
        damage = _damage(fs, name)
        if damage is not None:
            raise SourceProgressError(
                f"{fs.location(name)} is damaged: {damage}. Bring it back from a backup, or go back to an older "
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
        is_whole = lines is not None and all(_entry_of(line) is not None for line in lines)
        return None if is_whole else "it is not a whole entry of the log of a file source"
    first, _, rest = content.decode("utf-8", "replace").partition("\n")
    if kind == "commits" and not re.fullmatch(r"v[0-9]+", first):
        return "its first line is no version" if first else "it is empty"
    text = rest if kind == "commits" else first
    return None if (kind == "commits" and not text) or is_json_object(text) else "it is not a whole JSON object"


def _offset_lines(fs: CheckpointFileSystem, name: str, offsets: bytes) -> tuple[str, list[str]]:
    version, _, rest = offsets.decode("utf-8", "replace").partition("\n")
    if version not in ("v1", "v2"):
        raise SourceProgressError(
            f"{fs.location(name)} has format {format_value(version, 20)}; "
            f"only v1 and v2 are known, and a file source cannot "
            f"be cut at the right place without reading it"
        )
    return version, rest.split("\n")[1:]


def _log_offset(line: str) -> int | None:
    """n for {"logOffset": n}, -1 for a source that has no offset yet, None for another kind of source."""
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
    lines = _entry_lines(fs, f"sources/{source}/{names[0]}")
    return lines is not None and all(_entry_of(line) is not None for line in lines)


def _entry_lines(fs: CheckpointFileSystem, path: str) -> list[str] | None:
    version, *lines = fs.read_file(path).decode("utf-8", "replace").split("\n")
    return [line for line in lines if line] if version == "v1" else None


def _entry_of(line: str) -> int | None:
    """The entry that a line of the file log came with, None if it is not such a line."""
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
        f"{fs.location(f'sources/{source}/{missing}')} is missing: the log of the file source does not say which "
        f"files belong to offset {last}, so the savepoint could not go on at the right file"
    )
