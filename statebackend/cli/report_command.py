"""The command `report`: an HTML page about a savepoint or the checkpoints of a job directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.store.job_directory import JOB_FILE_NAME
from statebackend.cli.opening import open_savepoint
from statebackend.cli.printing import Printer
from statebackend.cli.terminal import AsJson, Overwrite, Place, ZooKeeper, print_answer, services_of
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
from statebackend.savepoint.statistics import CheckpointSizes, checkpoint_sizes

__all__ = ["stored_page"]


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
