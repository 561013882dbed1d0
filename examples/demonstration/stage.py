"""The frame of a demonstration: its own directory, a narrator, and the final clean-up.

incoming/     input of the job, as it arrives
savepoints/   logs/   scratch/
<name>/       a job directory, with <name>-rows/ and <name>-local/ beside it
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from attrs import frozen

from examples.demonstration.comparison import DifferenceError
from examples.demonstration.driver_process import DriverFailedError
from examples.demonstration.narration import Narrator
from statebackend import StateBackendError, StreamJobError
from statebackend.checkpoint.errors import CheckpointError


@frozen
class Stage:
    """What the steps of a demonstration share; the year is cut into ``parts`` parts."""

    root: Path
    parts: int
    narrator: Narrator

    @property
    def half(self) -> int:
        """The first part of the second half of the year."""
        return self.parts // 2

    @property
    def incoming(self) -> Path:
        return self.root / "incoming"

    def job_dir(self, name: str) -> Path:
        return self.root / name

    def rows_dir(self, name: str) -> Path:
        return self.root / f"{name}-rows"

    def savepoint(self, name: str) -> Path:
        return self.root / "savepoints" / name

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"

    def say(self, text: str) -> None:
        self.narrator.say(text)


def run_demonstration(
    package: str,
    description: str | None,
    run_steps: Callable[[Stage], None],
    arguments: Sequence[str],
    *,
    parts: int,
    fewest_parts: int,
) -> int:
    """Run the demonstration and return the exit status. By default all ``parts`` run."""
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description=(description or "").split("\n\n")[0])
    parser.add_argument("--keep", action="store_true", help="do not remove the directory in the end")
    parser.add_argument(
        "--parts",
        type=int,
        default=parts,
        help=f"how many of the {parts} parts of the input to take, at least {fewest_parts} (default: all)",
    )
    options = parser.parse_args(arguments)
    if not fewest_parts <= options.parts <= parts:
        parser.error(f"--parts must be from {fewest_parts} to {parts}")

    # So that an ended demonstration takes its driver processes with it, as it does after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    root = Path(tempfile.mkdtemp(prefix=f"{package.rpartition('.')[2]}-demo-"))
    scratch = root / "scratch"
    scratch.mkdir()
    # Spark, its workers and the driver processes put their temporary files here, so a kill leaves none elsewhere.
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    narrator = Narrator()
    narrator.say(f"Everything is written to {root}{'' if options.keep else ', which is removed in the end'}.")
    is_kept = True
    try:
        run_steps(Stage(root, options.parts, narrator))
        is_kept = options.keep
    except (DifferenceError, DriverFailedError, StreamJobError, StateBackendError, CheckpointError) as error:
        narrator.end()
        print(f"\nTHE DEMONSTRATION FAILED: {error}", file=sys.stderr)
        print(f"See {root}, and Spark's messages in {root / 'logs'}.", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, SystemExit):
        is_kept = options.keep
        raise
    finally:
        narrator.end()
        if not is_kept:
            shutil.rmtree(root, ignore_errors=True)
    return 0
