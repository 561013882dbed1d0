"""The files of a checkpoint directory of Spark, checked and prepared before Spark reads them.

Spark follows links, and trusts names and lengths in its files. A directory may come from somebody else, so everything
that Spark opens must be inside of it:

* There are no links.
* An archive of RocksDB has plain names: Spark copies files to the names in its entry ``metadata``. It has no entries
  and no data besides those of its directory, because Spark does not read the directory.
* The lengths in deltas, snapshots and changelogs are those of the file (`spark_records`).

Two kinds of metadata make Spark unable to read a valid checkpoint. `readable_copy` corrects them in a directory of
links, so that the state itself is not copied and the checkpoint is not changed:

* ``state/<operator>/_metadata/v2/<batch>`` names schema files by absolute paths. They are wrong after a move.
* Spark 3.5 writes no metadata of operators. Session windows in RocksDB cannot be read without it.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import re
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Final

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.savepoint.errors import ForeignFormatError, UnsupportedForeignStateError
from statebackend.savepoint.foreign.rocksdb_files import ForeignDatabase, is_needed
from statebackend.savepoint.foreign.spark_records import RECORD_FILE, check_records
from statebackend.state.private_directory import temporary_directory

_SCHEMA_FILE: Final = re.compile(r"(?:^|/)(_stateSchema/[^/]+/[^/]+)$")
_ARCHIVE: Final = re.compile(r"(\d+)(?:_[-0-9a-f]+)?\.zip")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][-\w.]*")
_MAX_ARCHIVE_BYTES: Final = 1 << 30
_MAX_METADATA_BYTES: Final = 1 << 26
_ENTRY_HEADER_BYTES: Final = 30
_MAX_DESCRIPTOR_BYTES: Final = 24
"""Data of an entry may be followed by its checksum and sizes, which are shorter than the header of an entry."""

_INFLATED_BYTES: Final = 1 << 20
_UNREADABLE: Final = (
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    ValueError,
    AttributeError,
    TypeError,
    KeyError,
    EOFError,
    NotImplementedError,
    RuntimeError,
)
_SESSION_START: Final = "sessionStartTime"
_ROCKSDB: Final = b"RocksDBStateStoreProvider"


def check_state_files(files: CheckpointFileSystem, batch_id: int) -> None:
    """Check that Spark opens and writes no files outside of the checkpoint, and notices damage.

    Raises:
        StorageError: Something is a link, or neither a file nor a directory.
        ForeignFormatError: A file has a wrong length, or an archive is damaged or would be unpacked elsewhere.
    """
    newest: dict[str, tuple[int, str]] = {}
    for directory in files.list_directories():
        files.check_regular(directory)
    for path in files.list_files("state"):
        directory, _, name = path.rpartition("/")
        if found := _ARCHIVE.fullmatch(name):
            _check_archive(files, path)
            if int(found[1]) <= batch_id + 1:
                newest[directory] = max(newest.get(directory, (0, "")), (int(found[1]), path))
        elif found := RECORD_FILE.fullmatch(name):
            check_records(files.read_file(path), files.location(path), found[1])
    for _, path in newest.values():
        _check_database(files, path)


def _check_archive(files: CheckpointFileSystem, path: str) -> None:
    """Check the names in an archive of RocksDB and in its list of sorted files."""
    where = files.location(path)
    try:
        data = files.read_file(path)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            if sum(one.file_size for one in archive.infolist()) > _MAX_ARCHIVE_BYTES:
                raise ForeignFormatError(f"{where}: its files are larger than 1 GiB, and no archive of Spark is")
            _check_layout(data, archive)
            if "metadata" in names:
                if archive.getinfo("metadata").file_size > _MAX_METADATA_BYTES:
                    raise ForeignFormatError(f"{where}: its entry metadata is larger than 64 MiB")
                # The first line is a version.
                listed = json.loads(archive.read("metadata").decode().partition("\n")[2])
                found = [*listed.get("sstFiles", ()), *listed.get("logFiles", ())]
                names += [name for one in found for key, name in one.items() if key.endswith("FileName")]
    except _UNREADABLE as error:
        raise ForeignFormatError(f"{where} is damaged: {error}. Restore it from a backup") from error
    for name in names:
        if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name):
            raise ForeignFormatError(f"{where}: {name!r} is not the name of a file in the archive's directory")


def _check_database(files: CheckpointFileSystem, path: str) -> None:
    """Read the sorted files of an archive, unless Hadoop has a checksum of each.

    At a damaged block Spark would silently end: it does not ask RocksDB why an iterator has ended.
    """
    root, directory = files.local_path(), path.rpartition("/")[0]
    if root is None:
        return
    where = files.location(path)
    try:
        with temporary_directory() as copy, zipfile.ZipFile(os.path.join(root, path)) as archive:
            names = archive.namelist()
            listed = json.loads(archive.read("metadata").decode().partition("\n")[2]) if "metadata" in names else {}
            sorted_files = {one["localFileName"]: one["dfsSstFileName"] for one in listed.get("sstFiles", ())}
            if all(files.exists(f"{directory}/SSTs/.{stored}.crc") for stored in sorted_files.values()):
                return
            stored_at = {name: f"{directory}/SSTs/{stored}" for name, stored in sorted_files.items()}
            for name in names:
                if name == "CURRENT" or name.startswith("MANIFEST"):
                    archive.extract(name, copy)
            for name, stored in stored_at.items():
                if is_needed(name, where):
                    _link(os.path.join(root, stored), os.path.join(copy, name))
            ForeignDatabase(copy, where, {name: files.location(stored) for name, stored in stored_at.items()}).check()
    except ForeignFormatError as error:
        raise ForeignFormatError(f"{error}. Restore the files from a backup") from error
    except (OSError, *_UNREADABLE) as error:
        raise ForeignFormatError(f"{where} is damaged: {error}. Restore it from a backup") from error


def _check_layout(data: bytes, archive: zipfile.ZipFile) -> None:
    """Raise `ValueError` for entries that are not in the directory, or are larger than it says."""
    end = 0
    for entry in sorted(archive.infolist(), key=lambda one: one.header_offset):
        start = entry.header_offset
        if not end <= start <= end + (_MAX_DESCRIPTOR_BYTES if end else 0):
            raise ValueError(f"its directory does not list what is at byte {end}")
        name_bytes, extra_bytes = struct.unpack_from("<HH", data, start + _ENTRY_HEADER_BYTES - 4)
        name_end = start + _ENTRY_HEADER_BYTES + name_bytes
        end = name_end + extra_bytes + entry.compress_size
        if data[start + _ENTRY_HEADER_BYTES : name_end] != entry.orig_filename.encode():
            raise ValueError(f"the name at byte {start} is not {entry.orig_filename!r} as in its directory")
        if entry.compress_type == zipfile.ZIP_DEFLATED:
            _check_deflated(data[name_end + extra_bytes : end], entry)
    if not end <= archive.start_dir <= end + _MAX_DESCRIPTOR_BYTES:
        raise ValueError(f"its directory does not list what is at byte {end}")


def _check_deflated(data: bytes, entry: zipfile.ZipInfo) -> None:
    inflating, size_bytes = zlib.decompressobj(-zlib.MAX_WBITS), 0
    while not inflating.eof and size_bytes <= entry.file_size:
        part = inflating.decompress(data, _INFLATED_BYTES)
        data = inflating.unconsumed_tail
        if not part and not data:
            break
        size_bytes += len(part)
    if not inflating.eof or size_bytes != entry.file_size or inflating.unused_data:
        raise ValueError(f"{entry.filename!r} does not have the size in its directory")


def operators_without_metadata(files: CheckpointFileSystem) -> Sequence[int]:
    """Return the numbers of the operators whose kind Spark has not recorded, as in checkpoints of Spark 3.5."""
    return [
        number
        for number in numbered_directories(files, "state")
        if all(path.endswith(".crc") for path in files.list_files(f"state/{number}/_metadata"))
    ]


def numbered_directories(files: CheckpointFileSystem, directory: str) -> Sequence[int]:
    """Return the numbers of operators below ``state``, or of partitions below an operator."""
    return sorted(int(name) for name in files.list_directories(directory) if name.isascii() and name.isdecimal())


def readable_copy(files: CheckpointFileSystem, batch_id: int) -> str:
    """Return the URI of a directory that Spark can read: the checkpoint, or links to it with corrected metadata."""
    corrected = dict(_corrected_metadata(files, batch_id))
    if not corrected:
        return files.uri
    root = files.local_path()
    if root is None:
        raise UnsupportedForeignStateError(
            f"{files.location(next(iter(corrected)))}: Spark cannot read this checkpoint where it is, because the "
            f"metadata has other paths or is missing. Copy the checkpoint to a local directory and import it from there"
        )
    copy = os.path.join(tempfile.mkdtemp(prefix="statebackend-spark-"), "checkpoint")
    atexit.register(shutil.rmtree, os.path.dirname(copy), ignore_errors=True)
    for name in os.listdir(root):
        if name != "state":
            _link(os.path.join(root, name), os.path.join(copy, name))
    for operator in files.list_directories("state"):
        for name in os.listdir(os.path.join(root, "state", operator)):
            if name != "_metadata":
                _link(os.path.join(root, "state", operator, name), os.path.join(copy, "state", operator, name))
    for path in files.list_files("state"):
        if path.split("/")[2] == "_metadata" and not path.endswith(".crc"):
            corrected.setdefault(path, files.read_file(path))
    for path, content in corrected.items():
        target = os.path.join(copy, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(content)
    return copy


def _link(source: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.symlink(os.path.realpath(source), target)


def _corrected_metadata(files: CheckpointFileSystem, batch_id: int) -> Iterator[tuple[str, bytes]]:
    """Yield files of metadata that Spark needs in another form than they have."""
    for operator in files.list_directories("state"):
        directory = f"state/{operator}/_metadata/v2"
        for path in files.list_files(directory):
            if path.rpartition("/")[2].isdecimal():
                content = files.read_file(path)
                moved = _with_present_paths(files, operator, path, content)
                if moved != content:
                    yield path, moved
    for number in operators_without_metadata(files):
        metadata = _session_metadata(files, number, batch_id)
        if metadata is not None:
            yield f"state/{number}/_metadata/metadata", metadata


def _with_present_paths(files: CheckpointFileSystem, operator: str, path: str, content: bytes) -> bytes:
    """Return metadata of an operator whose schema files are those of this checkpoint."""
    version, _, text = content.decode("utf-8", "replace").partition("\n")
    try:
        metadata = json.loads(text)
        stores = metadata["stateStoreInfo"]
        stored = [list(store["stateSchemaFilePaths"]) for store in stores]
        names = [[_SCHEMA_FILE.search(one) for one in paths] for paths in stored]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ForeignFormatError(
            f"{files.location(path)} is damaged: it is not the metadata of an operator. Restore it from a backup"
        ) from error
    is_moved = False
    for store, paths, found in zip(stores, stored, names, strict=True):
        for one, name in zip(paths, found, strict=True):
            if name is None or ".." in name[1]:
                raise ForeignFormatError(f"{files.location(path)}: {one!r} is not the path of a schema of a state")
        present = [files.location(f"state/{operator}/{name[1]}") for name in found if name is not None]
        is_moved |= any(_path_of(one) != _path_of(now) for one, now in zip(paths, present, strict=True))
        store["stateSchemaFilePaths"] = present
    return f"{version}\n{json.dumps(metadata)}".encode() if is_moved else content


def _path_of(uri: str) -> str:
    """Return the path of a URI without its scheme: Hadoop and this library name schemes differently."""
    scheme, separator, rest = uri.partition(":")
    return os.path.normpath("/" + rest.lstrip("/")) if separator and "/" not in scheme else os.path.normpath(uri)


def _session_metadata(files: CheckpointFileSystem, number: int, batch_id: int) -> bytes | None:
    """Return metadata for session windows in RocksDB: their keys are stored in the form of a prefix."""
    schema = f"state/{number}/0/_metadata/schema"
    if not files.exists(schema) or _ROCKSDB not in files.read_file(f"offsets/{batch_id}"):
        return None
    fields = _key_fields(files.location(schema), files.read_file(schema))
    if _SESSION_START not in fields:
        return None
    partitions = numbered_directories(files, f"state/{number}")
    store = {"storeName": "default", "numColsPrefixKey": len(fields) - 1, "numPartitions": len(partitions)}
    operator = {"operatorId": number, "operatorName": "sessionWindowStateStoreSaveExec"}
    return b"v1\n" + json.dumps({"operatorInfo": operator, "stateStoreInfo": [store]}).encode()


def _key_fields(where: str, schema: bytes) -> Sequence[str]:
    """Return the columns of a key.

    Layout: text("v2") i32(count) count * text(part of JSON), where text is u16(bytes) UTF-8.
    """
    try:
        if schema[:4] != b"\x00\x02v2":
            raise ValueError("its version is not v2")
        (parts,) = struct.unpack_from(">i", schema, 4)
        position, text = 8, b""
        for _ in range(min(parts, len(schema))):
            (length,) = struct.unpack_from(">H", schema, position)
            text += schema[position + 2 : position + 2 + length]
            position += 2 + length
        return [str(field["name"]) for field in json.loads(text)["fields"]]
    except (ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
        raise ForeignFormatError(f"{where} is damaged: {error}. Restore it from a backup") from error
