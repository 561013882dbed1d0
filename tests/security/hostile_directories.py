"""Job directories and savepoints that an attacker may have written, and the commands that read them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final
from unittest import mock

import xxhash
from attrs import frozen

from statebackend import KeyedProcessFunction, MapStateDescriptor, RuntimeContext, ValueStateDescriptor
from statebackend.local import LocalJob, LocalStreamEnvironment

MAX_SECONDS: Final = 120
FAILING: Final = "failing"
PROGRAM: Final = "hostile_directories:environment"

PLAN: Final = """
from statebackend.savepoint.rewrite import Plan

def plan():
    return Plan()
"""


class Count(KeyedProcessFunction[Any, Any, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int))
        self.seen = context.get_map_state(MapStateDescriptor("seen", int, str))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        if value["key"] == FAILING:
            raise RuntimeError("a job that fails in its first epoch")
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.seen.put(count, "x" * 100)
        yield value["key"], count


def environment(job_dir: object = None, keys: Sequence[str] = "") -> LocalStreamEnvironment:
    """A job with one record per epoch."""
    env = LocalStreamEnvironment(job_dir=job_dir, epoch_size=1)  # type: ignore[arg-type]
    records = env.from_elements([{"key": key} for key in keys], schema="key string")
    records.key_by("key").process(Count(), uid="count", schema="key string, count int").sink_to([])
    return env


def run_job(job_dir: object, keys: Sequence[str] = "", **start: Any) -> LocalJob:
    with contextlib.closing(environment(job_dir, keys)) as env:
        return env.execute("count", **start)


@frozen
class Answer:
    """The exit status and the output of a command."""

    status: int
    output: str
    errors: str


def command(*arguments: object) -> Answer:
    """Run the command `statebackend`. Raise if it fails with a traceback, or hangs."""
    [script] = entry_points(group="console_scripts", name="statebackend")
    output, errors = io.StringIO(), io.StringIO()
    former = signal.getsignal(signal.SIGTERM)
    with (
        mock.patch.object(sys, "argv", ["statebackend", *map(str, arguments)]),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
        limited(),
    ):
        try:
            script.load()()
        except SystemExit as end_of_command:
            return Answer(int(end_of_command.code or 0), output.getvalue(), errors.getvalue())
        finally:
            signal.signal(signal.SIGTERM, former)
            sys.modules.pop("statebackend_plan", None)
    return Answer(0, output.getvalue(), errors.getvalue())


COMMANDS: Final = (
    "inspect",
    "show",
    "schema",
    "diff",
    "du",
    "export",
    "report",
    "rewrite",
    "migrate",
    "check",
    "gc --dry-run",
    "gc",
    "roll-back",
)


def arguments_of(name: str, place: object, directory: Path) -> list[object]:
    """A command with `place` as its job directory, checkpoint or savepoint. It writes to `directory`."""
    directory.mkdir(exist_ok=True)
    (directory / "plan.py").write_text(PLAN)
    out = directory / str(len(list(directory.iterdir())))
    job = ["--job", PROGRAM]
    return {
        "inspect": ["inspect", place, "--verify"],
        "show": ["show", place, "count", "count"],
        "schema": ["schema", place],
        "diff": ["diff", place, place, "--entries"],
        "du": ["du", place],
        "export": ["export", place, "count", "count", out, "--to", "csv"],
        "report": ["report", place, out],
        "rewrite": ["rewrite", place, out, "--plan", directory / "plan.py"],
        "migrate": ["migrate", place, out, *job],
        "check": ["check", place, *job],
        "gc --dry-run": ["gc", place, "--dry-run"],
        "gc": ["gc", place],
        "roll-back": ["roll-back", place, "previous"],
    }[name]


def content_of(directory: Path) -> dict[str, object]:
    """The content of a directory: files with their bytes and link counts, and links with their targets."""
    found: dict[str, object] = {}
    for path in sorted(directory.rglob("*")):
        if path.is_symlink():
            found[str(path)] = os.readlink(path)
        elif path.is_file():
            found[str(path)] = path.read_bytes()
        else:
            found[str(path)] = path.stat().st_mode
    return found


def change_checksummed_json(path: Path, **changes: object) -> None:
    """Change fields of a JSON file of a job directory, with the checksum that the format requires."""
    content = {**json.loads(path.read_bytes()), **changes}
    write_checksummed_json(path, content)


def write_checksummed_json(path: Path, content: dict[str, Any]) -> None:
    content = {name: value for name, value in content.items() if name != "checksum"}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    path.write_text(json.dumps({**content, "checksum": f"xxh3:{xxhash.xxh3_128_hexdigest(canonical)}"}))


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """End a block that hangs, for example while it opens a named pipe, with `TimeoutError`."""

    def end(*_: object) -> None:
        raise TimeoutError(f"no end after {MAX_SECONDS} s")

    former = signal.signal(signal.SIGALRM, end)
    signal.alarm(MAX_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
