"""The nodes of a job in ZooKeeper: where they are and what is in them. `docs/formats-checkpoint.md` has the grammar.

    <root>/<job>/job                        whose job this is
    <root>/<job>/leaders/<uuid>__lock__<n>  one for each driver that leads or stands by; the lowest <n> leads
    <root>/<job>/driver-files               where the driver files of the leader are
    <root>/<job>/last-id                    the greatest id that a checkpoint of the job has had
    <root>/<job>/checkpoints/<id>           a completed checkpoint: where its metadata file is
    <root>/<job>/set-aside/<id>-<n>         one that was given up by an explicit fallback

All content but that of `leaders` is sealed JSON (see `sealed_json`).
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote

from attrs import asdict, frozen

from checkpointing.errors import CheckpointError, CorruptJobIdentityError, CorruptMetadataError, InvariantViolationError
from checkpointing.handles.invariants import check_identifier
from checkpointing.handles.state_handles import FileHandle
from checkpointing.storage.pointed_metadata import CheckpointPointer
from checkpointing.storage.sealed_json import sealed_json, unsealed_json

__all__ = [
    "JobNode",
    "JobNodes",
    "checked_root",
    "decode_pointer",
    "decode_text",
    "encode_pointer",
    "encode_text",
]

_FORMAT_VERSION: Final = 1
_ID: Final = re.compile("[0-9]{12,19}")
_SET_ASIDE: Final = re.compile("([0-9]{12,19})-([1-9][0-9]*)")


def checked_root(root: str) -> str:
    """The path of a node below which jobs are. Raises `InvariantViolationError`."""
    segments = root.split("/")[1:]
    if not root.startswith("/") or any(part in ("", ".", "..", "zookeeper") or "\0" in part for part in segments):
        raise InvariantViolationError(f"root is {root!r}; give the path of a node of its own, such as '/statebackend'")
    return root


@frozen
class JobNodes:
    """Where the nodes of a job are."""

    root: str
    job_name: str

    @property
    def directory(self) -> str:
        """The node above all others. Its name is that of the job; all but letters, digits, `_`, `-`, `~` are `%XX`."""
        return f"{self.root}/{quote(self.job_name, safe='').replace('.', '%2E')}"

    @property
    def job(self) -> str:
        """Whose job this is."""
        return f"{self.directory}/job"

    @property
    def leaders(self) -> str:
        """The parent of those that lead and stand by."""
        return f"{self.directory}/leaders"

    @property
    def driver_files(self) -> str:
        """Where the driver files are."""
        return f"{self.directory}/driver-files"

    @property
    def last_id(self) -> str:
        """The greatest id of all checkpoints."""
        return f"{self.directory}/last-id"

    @property
    def checkpoints(self) -> str:
        """The parent of the pointers."""
        return f"{self.directory}/checkpoints"

    @property
    def set_aside(self) -> str:
        """The parent of those that were given up."""
        return f"{self.directory}/set-aside"

    def checkpoint(self, checkpoint_id: int) -> str:
        """The pointer of a checkpoint."""
        return f"{self.checkpoints}/{checkpoint_id:012d}"

    @staticmethod
    def id_of(name: str) -> int | None:
        """The checkpoint whose pointer has this name; None if none has."""
        return int(name) if _ID.fullmatch(name) else None

    @staticmethod
    def id_set_aside(name: str) -> int | None:
        """The checkpoint that was given up under this name; None if none was."""
        matched = _SET_ASIDE.fullmatch(name)
        return None if matched is None else int(matched.group(1))


@frozen
class JobNode:
    """Whose job this is: `job_id` is that of `job.json`, `job_directory` where it was then, for people."""

    job_id: str
    job_directory: str

    def __attrs_post_init__(self) -> None:
        check_identifier("job_id", self.job_id)

    def encode(self) -> bytes:
        """The content of the node."""
        return sealed_json(asdict(self), _FORMAT_VERSION)

    @classmethod
    def decode(cls, data: bytes, where: str) -> JobNode:
        """From the content of the node. Raises `CorruptJobIdentityError`."""
        content = unsealed_json(data, where, _FORMAT_VERSION)
        try:
            return cls(**content)
        except (InvariantViolationError, TypeError) as error:
            raise CorruptJobIdentityError(f"{where} is not valid: {error}") from error


def encode_pointer(pointer: CheckpointPointer) -> bytes:
    """The content of the node of a checkpoint."""
    return sealed_json(asdict(pointer), _FORMAT_VERSION)


def decode_pointer(data: bytes, checkpoint_id: int, where: str) -> CheckpointPointer:
    """From the content of the node of a checkpoint. Raises `CorruptMetadataError`."""
    try:
        content = unsealed_json(data, where, _FORMAT_VERSION)
        pointer = CheckpointPointer(content.pop("checkpoint_id"), FileHandle(**content.pop("metadata_file")))
        if content or pointer.checkpoint_id != checkpoint_id:
            raise InvariantViolationError("it is that of another checkpoint, or says more than it should")
    except (CheckpointError, KeyError, TypeError, AttributeError) as error:
        raise CorruptMetadataError(f"{where} is not a pointer to a checkpoint: {error}") from error
    return pointer


def encode_text(value: Any) -> bytes:
    """The content of a node with one value."""
    return sealed_json({"value": value}, _FORMAT_VERSION)


def decode_text(data: bytes, where: str, kind: type) -> Any:
    """From the content of a node with one value of that type. Raises `CorruptJobIdentityError`."""
    content = unsealed_json(data, where, _FORMAT_VERSION)
    if content.keys() != {"value"} or type(content["value"]) is not kind:
        raise CorruptJobIdentityError(f"{where} does not hold one value of type {kind.__name__}")
    return content["value"]
