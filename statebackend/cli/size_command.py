"""The command `du`: sizes of stored state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.checkpoint.store.checkpoint_directories import METADATA_FILE_NAME
from statebackend.checkpoint.store.job_directory import JOB_FILE_NAME
from statebackend.cli.opening import open_savepoint
from statebackend.cli.printing import Printer
from statebackend.cli.terminal import AsJson, CheckpointId, Place, ZooKeeper, print_answer, services_of
from statebackend.savepoint.sizes import counted, format_bytes
from statebackend.savepoint.state_location import completed_checkpoints
from statebackend.savepoint.statistics import CheckpointFile, stored_files


def du(
    path: Place,
    files: Annotated[bool, typer.Option("--files", help="Name every file.")] = False,
    checkpoint: CheckpointId = None,
    zookeeper: ZooKeeper = None,
    as_json: AsJson = False,
) -> None:
    """Show sizes by operator, state and file; for a job, what its checkpoints share."""
    checkpoints = _checkpoints(path, checkpoint, zookeeper)
    found = stored_files(checkpoints)
    answer: dict[str, Any] = {
        "uri": CheckpointFileSystem.from_uri(path).uri,
        **_sizes(found, checkpoints),
        "checkpoints": [_checkpoint(one, found) for one in checkpoints],
        "operators": _operators(found, checkpoints),
    }
    if files or as_json:
        answer["by_file"] = [_file(file) for file in found]
    print_answer(as_json, answer, _print_sizes)


def _checkpoints(path: str, checkpoint: int | None, zookeeper: str | None) -> Sequence[CheckpointMetadata]:
    if checkpoint is None and CheckpointFileSystem.from_uri(path).exists(JOB_FILE_NAME):
        found = completed_checkpoints(path, services_of(zookeeper))
        # Fail for a damaged newest checkpoint, as every other command does.
        found.check_newest()
        return [found.retained[one].metadata for one in sorted(found.retained)]
    return [open_savepoint(path, checkpoint, zookeeper).metadata]


def _sizes(files: Sequence[CheckpointFile], checkpoints: Sequence[CheckpointMetadata]) -> dict[str, Any]:
    """Return sizes as every command counts them: of files, and of the metas, which each checkpoint has separately."""
    file_bytes = sum(file.size_bytes for file in files)
    meta_bytes = sum(one.meta_bytes for one in checkpoints)
    return {
        "size_bytes": file_bytes + meta_bytes,
        "file_bytes": file_bytes,
        "meta_bytes": meta_bytes,
        "files": len(files),
    }


def _checkpoint(checkpoint: CheckpointMetadata, files: Sequence[CheckpointFile]) -> dict[str, Any]:
    own = [file for file in files if checkpoint.checkpoint_id in file.checkpoint_ids]
    alone = [file for file in own if len(file.checkpoint_ids) == 1]
    return {
        "checkpoint_id": checkpoint.checkpoint_id,
        "alone_bytes": _sizes(alone, [checkpoint])["size_bytes"],
        **_sizes(own, [checkpoint]),
    }


def _operators(files: Sequence[CheckpointFile], checkpoints: Sequence[CheckpointMetadata]) -> list[dict[str, Any]]:
    meta_bytes: Counter[str | None] = Counter()
    for checkpoint in checkpoints:
        for operator in checkpoint.operators:
            meta_bytes[operator.uid] += operator.meta_bytes
    sizes: Counter[tuple[str | None, str]] = Counter()
    counts: Counter[tuple[str | None, str]] = Counter()
    for file in files:
        place = file.operator_uid, " + ".join(file.states)
        sizes[place] += file.size_bytes
        counts[place] += 1
    uids = dict.fromkeys([*(uid for uid, size in meta_bytes.items() if size), *(uid for uid, _ in sizes)])
    return [
        {
            "uid": uid,
            "size_bytes": meta_bytes[uid] + sum(size for (other, _), size in sizes.items() if other == uid),
            "meta_bytes": meta_bytes[uid],
            "states": [
                {"name": name, "size_bytes": size, "files": counts[other, name]}
                for (other, name), size in sizes.most_common()
                if other == uid
            ],
        }
        for uid in uids
    ]


def _file(file: CheckpointFile) -> dict[str, Any]:
    return {
        "path": file.path,
        "size_bytes": file.size_bytes,
        "operator": file.operator_uid,
        "states": list(file.states),
        "checkpoints": list(file.checkpoint_ids),
    }


def _print_sizes(printer: Printer, answer: dict[str, Any]) -> None:
    files = f"{format_bytes(answer['file_bytes'])} in {counted(answer['files'], 'file')}"
    metas = f"{format_bytes(answer['meta_bytes'])} of schemas in {METADATA_FILE_NAME}"
    printer.line(f"{answer['uri']}: {format_bytes(answer['size_bytes'])}: {files}, {metas}")
    if len(answer["checkpoints"]) > 1:
        printer.table(
            ("checkpoint", "bytes", "of them alone", "files"),
            (
                (one["checkpoint_id"], format_bytes(one["size_bytes"]), format_bytes(one["alone_bytes"]), one["files"])
                for one in answer["checkpoints"]
            ),
        )
    printer.table(
        ("operator", "state", "bytes", "files"),
        (
            (operator["uid"], state["name"], format_bytes(state["size_bytes"]), state["files"])
            for operator in answer["operators"]
            for state in (*operator["states"], *_metas_of(operator))
        ),
    )
    if "by_file" in answer:
        printer.table(
            ("file", "bytes", "operator", "states", "checkpoints"),
            (
                (one["path"], format_bytes(one["size_bytes"]), one["operator"], " + ".join(one["states"]), ids)
                for one in answer["by_file"]
                for ids in (" ".join(map(str, one["checkpoints"])),)
            ),
        )


def _metas_of(operator: dict[str, Any]) -> list[dict[str, Any]]:
    size_bytes = operator["meta_bytes"]
    return [{"name": f"(in {METADATA_FILE_NAME})", "size_bytes": size_bytes, "files": None}] if size_bytes else []
