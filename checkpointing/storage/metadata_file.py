"""`_metadata` files in a store: written whole and durably, read within bounds."""

from __future__ import annotations

from checkpointing.errors import CorruptMetadataError
from checkpointing.handles.checksum import checksum_of_bytes
from checkpointing.handles.state_handles import FileHandle
from checkpointing.metadata.checkpoint_metadata import CheckpointMetadata
from checkpointing.metadata.metadata_bytes import MAX_METADATA_BYTES, decode_metadata, encode_metadata
from checkpointing.storage.file_system import CheckpointFileSystem

__all__ = ["METADATA_FILE_NAME", "metadata_path", "read_metadata", "read_metadata_with_handle", "write_metadata"]

METADATA_FILE_NAME = "_metadata"


def metadata_path(directory: str) -> str:
    """The path of the file in a directory, which may be "" for the root."""
    return f"{directory}/{METADATA_FILE_NAME}" if directory else METADATA_FILE_NAME


def write_metadata(fs: CheckpointFileSystem, directory: str, metadata: CheckpointMetadata) -> FileHandle:
    """Write `directory/_metadata`, durably; `directory` may be "" for the root.

    The checksum of the returned handle is the digest that children name as `parent_digest`. Raises
    `InvariantViolationError` when the metadata is too large, `StorageError` when the store fails.
    """
    return fs.write_file(metadata_path(directory), encode_metadata(metadata))


def read_metadata(fs: CheckpointFileSystem, directory: str) -> CheckpointMetadata:
    """Read `directory/_metadata`. Raises `MissingFileError`, `CorruptMetadataError` or its subclass
    `UnsupportedMetadataVersionError`, each naming the file and what to do.
    """
    return read_metadata_with_handle(fs, directory)[0]


def read_metadata_with_handle(fs: CheckpointFileSystem, directory: str) -> tuple[CheckpointMetadata, FileHandle]:
    """Like `read_metadata`, also giving the handle of the file, whose checksum children refer to."""
    path = metadata_path(directory)
    size_bytes = fs.size(path)
    if size_bytes > MAX_METADATA_BYTES:
        # Judged before it is read: a huge file would take all memory.
        raise CorruptMetadataError(
            f"{fs.location(path)} is not usable: {size_bytes} bytes is more than the limit of {MAX_METADATA_BYTES}. "
            "Restore from another checkpoint or savepoint, or bring back the original file from a backup."
        )
    data = fs.read_file(path)
    return decode_metadata(data, fs.location(path)), FileHandle(path, len(data), checksum_of_bytes(data))
