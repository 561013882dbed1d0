"""The commands about checkpoints and sizes.

`du` prints the sizes of stored state. `report` writes an HTML page about a savepoint or the checkpoints of a job
directory.
"""

from __future__ import annotations

import os
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
from statebackend.cli.terminal import AsJson, CheckpointId, Overwrite, Place, ZooKeeper, print_answer, services_of
from statebackend.savepoint.atomic_files import check_place
from statebackend.savepoint.html_pages import (
    Html,
    Section,
    Table,
    Tile,
    checkpoint_growth,
    document,
    sizes_section,
    tiles,
    write_page,
)
from statebackend.savepoint.sizes import NOTHING, counted, format_bytes, format_short_bytes, format_time
from statebackend.savepoint.state_location import completed_checkpoints
from statebackend.savepoint.statistics import CheckpointFile, CheckpointSizes, checkpoint_sizes, stored_files
from statebackend.state.priority_queue import displayed_state

__all__ = ["stored_page"]


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
            (operator["uid"], displayed_state(state["name"]), format_bytes(state["size_bytes"]), state["files"])
            for operator in answer["operators"]
            for state in (*operator["states"], *_metas_of(operator))
        ),
    )
    if "by_file" in answer:
        printer.table(
            ("file", "bytes", "operator", "states", "checkpoints"),
            (
                (
                    one["path"],
                    format_bytes(one["size_bytes"]),
                    one["operator"],
                    " + ".join(map(displayed_state, one["states"])),
                    ids,
                )
                for one in answer["by_file"]
                for ids in (" ".join(map(str, one["checkpoints"])),)
            ),
        )


def _metas_of(operator: dict[str, Any]) -> list[dict[str, Any]]:
    size_bytes = operator["meta_bytes"]
    return [{"name": f"(in {METADATA_FILE_NAME})", "size_bytes": size_bytes, "files": None}] if size_bytes else []


def stored_page(uri: str, checkpoints: Sequence[CheckpointSizes]) -> str:
    """Return the page. The checkpoints are oldest first, and there is at least one."""
    newest = checkpoints[-1]
    states = sum(len(one.bytes_by_state) for one in newest.operators)
    numbers = [
        Tile(
            newest.kind.capitalize(),
            str(newest.checkpoint_id),
            f"of {len(checkpoints)} retained" if len(checkpoints) > 1 else "self-contained",
        ),
        Tile("State", format_short_bytes(newest.size_bytes), f"in {counted(newest.file_count, 'file')}"),
        Tile("Operators", str(len(newest.operators)), counted(states, "keyed state")),
        Tile("Watermark", format_time(newest.watermark_ms), "no event time" if newest.watermark_ms is None else "UTC"),
    ]
    facts = [
        ("location", uri),
        ("taken", f"{format_time(newest.timestamp_ms)} UTC"),
        ("key groups", str(newest.max_parallelism)),
        ("job", newest.job_id),
    ]
    body: list[Html | Section] = [tiles(numbers), _kept(checkpoints)]
    if newest.operators:
        body.append(sizes_section(newest, checkpoint_growth(checkpoints)))
    return document(newest.job_name, kind="Report of stored state", status="stored", facts=facts, body=body)


def _kept(checkpoints: Sequence[CheckpointSizes]) -> Section:
    rows = [
        (
            str(one.checkpoint_id),
            format_time(one.timestamp_ms),
            format_bytes(one.size_bytes),
            f"{one.file_count:,}",
            NOTHING if one.watermark_ms is None else format_time(one.watermark_ms),
        )
        for one in reversed(checkpoints)
    ]
    columns = ("checkpoint", "taken (UTC)", "state", "files", "watermark (UTC)")
    return Section("Checkpoints", [Table("Kept", columns, rows, {0, 2, 3}).html()])


def report(
    path: Place,
    target: Annotated[str, typer.Argument(metavar="OUT.html", help="The file to write.")],
    overwrite: Overwrite = False,
    zookeeper: ZooKeeper = None,
    as_json: AsJson = False,
) -> None:
    """Write an HTML report of checkpoints and sizes, with plots and tables, as one file."""
    written = check_place(target, overwrite=overwrite)
    newest, services = open_savepoint(path, None, zookeeper), services_of(zookeeper)
    kept = [newest.metadata]
    if CheckpointFileSystem.from_uri(path).exists(JOB_FILE_NAME):
        found = completed_checkpoints(path, services).retained
        kept = [one.metadata for checkpoint_id, one in sorted(found.items())] or kept
    write_page(target, stored_page(newest.uri, [checkpoint_sizes(one) for one in kept]), overwrite=overwrite)
    answer = {
        "path": written,
        "size_bytes": os.path.getsize(written),
        "kind": newest.metadata.kind.value.lower(),
        "checkpoints": [one.checkpoint_id for one in kept],
    }
    print_answer(as_json, answer, _print_report)


def _print_report(printer: Printer, answer: dict[str, Any]) -> None:
    text = counted(len(answer["checkpoints"]), answer["kind"])
    printer.line(f"{answer['path']}: {text}, {format_bytes(answer['size_bytes'])}; open it in a browser")
