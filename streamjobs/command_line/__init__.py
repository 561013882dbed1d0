"""The command `statebackend` with what needs the program of a job: `check`, `lock`, `migrate`, beside those below.

    all_commands  all commands: those of `savepoints.command_line`, which need no program, and those of this room
    job_commands  `check` and `lock`
    upkeep_commands  `gc` and `fall-back`, which lead a job that does not run; `going_back` is what the latter does
    migrate_command  `migrate`
    job_loading   from ``module:factory`` to the job, with a line for whatever fails on the way
    comparisons   a job put to a lock, a savepoint or a history of locks, and how that ends
    job_answers   what was found, as plain data, and how it is told to people

`check` ends with 1 if a start is refused and 2 if one restores and loses something, `lock --check` with 1 if the file
is another; all else ends as the commands below do.

The module that ``--job`` names is imported, and what it imports; nothing that is read from a file is.
"""

from __future__ import annotations

from savepoints import command_line

__all__ = ["run"]


def run() -> None:
    """The command; says how to install what it needs, where that is missing."""
    command_line.run("streamjobs.command_line.all_commands")
