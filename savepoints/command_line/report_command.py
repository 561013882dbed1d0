"""The command that writes a report: a page for people about state that lies somewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.job_directory import JOB_FILE_NAME
from savepoints.command_line.command_arguments import AsJson, Overwrite, Place, ZooKeeper, services_of
from savepoints.command_line.opening import opened
from savepoints.command_line.printing import Printer
from savepoints.command_line.telling import tell
from savepoints.pages.document import write_page
from savepoints.pages.stored_page import stored_page
from savepoints.reading.checkpoint_figures import checkpoint_figures
from savepoints.reading.state_location import completed_checkpoints
from savepoints.shown_sizes import counted, shown_bytes
from savepoints.whole_files import check_place

__all__ = ["REPORT_COMMANDS"]


def report(
    path: Place,
    target: Annotated[str, typer.Argument(metavar="OUT.html", help="The file to write.")],
    overwrite: Overwrite = False,
    zookeeper: ZooKeeper = None,
    as_json: AsJson = False,
) -> None:
    """A page for people: checkpoints, sizes of states and subtasks, as plots and tables in one file of HTML."""
    written = check_place(target, overwrite=overwrite)
    newest, services = opened(path, None, zookeeper), services_of(zookeeper)
    kept = [newest.metadata]
    if CheckpointFileSystem.from_uri(path).exists(JOB_FILE_NAME):
        found = completed_checkpoints(path, services).retained
        kept = [one.metadata for checkpoint_id, one in sorted(found.items())] or kept
    write_page(target, stored_page(newest.uri, [checkpoint_figures(one) for one in kept]), overwrite=overwrite)
    answer = {
        "path": written,
        "size_bytes": os.path.getsize(written),
        "kind": newest.metadata.kind.value.lower(),
        "checkpoints": [one.checkpoint_id for one in kept],
    }
    tell(as_json, answer, _tell_report)


def _tell_report(printer: Printer, answer: dict[str, Any]) -> None:
    told = counted(len(answer["checkpoints"]), answer["kind"])
    printer.line(f"{answer['path']}: {told}, {shown_bytes(answer['size_bytes'])}; open it in a browser")


REPORT_COMMANDS: Final[Sequence[Callable[..., None]]] = (report,)
