"""The commands that work on the directory of a job that does not run, without its program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, TypeAlias

import typer

from checkpointing.storage.found_checkpoints import PREVIOUS
from savepoints.command_line.command_arguments import AsJson, ZooKeeper, services_of
from savepoints.command_line.printing import Printer
from savepoints.command_line.telling import tell
from savepoints.shown_sizes import counted, shown_bytes
from streamjobs.command_line.going_back import went_back
from streamjobs.runtime.job_upkeep import clear_up, led_job, needless

__all__ = ["UPKEEP_COMMANDS"]

JobDir: TypeAlias = Annotated[str, typer.Argument(metavar="JOB_DIR", help="The directory of a job that does not run.")]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
DriverDirectory: TypeAlias = Annotated[
    str | None, typer.Option("--driver-directory", metavar="DIR", help="That of the job, if it has one.")
]


def gc(
    job_dir: JobDir,
    dry_run: DryRun = False,
    zookeeper: ZooKeeper = None,
    driver_directory: DriverDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Removes what no checkpoint needs, as a start of the job does; refuses while a driver runs."""
    with led_job(job_dir, services_of(zookeeper, stands_by=False), driver_directory) as job:
        found = needless(job) if dry_run else clear_up(job)
    answer = {
        "removed": not dry_run,
        "size_bytes": found.size_bytes,
        "files": [{"path": path, "size_bytes": size} for path, size in found.files],
        "unfinished_checkpoints": list(found.directories),
        "unreadable_checkpoints": list(found.unreadable),
    }
    tell(as_json, answer, _tell_cleared)


def fall_back(
    job_dir: JobDir,
    to: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="Its id, or `previous`.")],
    dry_run: DryRun = False,
    zookeeper: ZooKeeper = None,
    driver_directory: DriverDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Goes back to an older checkpoint, or begins to where the sinks of the job have to take output back."""
    if to != PREVIOUS and not to.isdecimal():
        raise typer.BadParameter(f"{to!r} is neither the id of a checkpoint nor {PREVIOUS!r}")
    target = to if to == PREVIOUS else int(to)
    with led_job(job_dir, services_of(zookeeper, stands_by=False), driver_directory) as job:
        answer = went_back(job, target, dry_run=dry_run)
    tell(as_json, answer, _tell_gone_back)


def _tell_cleared(printer: Printer, answer: dict[str, Any]) -> None:
    if answer["unreadable_checkpoints"]:
        unreadable = ", ".join(map(str, answer["unreadable_checkpoints"]))
        printer.line(f"no file of state is removed as long as there are checkpoints that cannot be read: {unreadable}")
    found = []
    if answer["unfinished_checkpoints"]:
        found.append(f"{counted(len(answer['unfinished_checkpoints']), 'checkpoint')} that did not become complete")
    if answer["files"]:
        found.append(f"{counted(len(answer['files']), 'file')} with {shown_bytes(answer['size_bytes'])}")
    done = "removed" if answer["removed"] else "would be removed"
    printer.line(f"{done}: {' and '.join(found)}" if found else "nothing is needless: there is nothing to remove")
    for path in answer["unfinished_checkpoints"]:
        printer.line(f"  {path} (did not become complete)")
    for file in answer["files"]:
        printer.line(f"  {file['path']} ({shown_bytes(file['size_bytes'])})")


def _tell_gone_back(printer: Printer, answer: dict[str, Any]) -> None:
    checkpoint_id = answer["checkpoint_id"]
    begun = {
        "planned": f"would go back to checkpoint {checkpoint_id}",
        "begun": f"going back to checkpoint {checkpoint_id} is begun",
        "done": f"went back to checkpoint {checkpoint_id}",
    }
    printer.line(begun[answer["status"]])
    printer.pairs(
        {
            "given up": ", ".join(map(str, answer["given_up"])) or "nothing",
            "processed again": answer["processed_again"],
            "set aside": ", ".join(answer["set_aside"]),
            "next": answer["next"],
        }
    )


UPKEEP_COMMANDS: Final[Sequence[Callable[..., None]]] = (gc, fall_back)
