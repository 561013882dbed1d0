"""The options of a state table, checked (case-insensitive names, text values), and the program's serializers.

Spark reads the table in another process. So the options also carry what the program registered, and modules to
import.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import frozen

from snapshots.permitted_modules import allow_snapshot_modules
from statebackend.checkpoint.errors import InvariantViolationError
from statebackend.checkpoint.ha.services import JobServices
from statebackend.checkpoint.ha.zookeeper import ZooKeeperHighAvailability
from statebackend.savepoint.value_forms import ColumnForms
from statebackend.spark.tasks.program_pickles import ProgramModules
from statebackend.streaming.errors import StreamJobError

KINDS: Final = ("keyed", "metadata", "timers", "operator", "broadcast")
"""The kinds of tables; the first is the default."""


HOW_TO_SHIP: Final = (
    'name its module with .option("modules", "package.module"), and ship it to driver and executors: with '
    "spark-submit --py-files, installed, or on PYTHONPATH (spark.executorEnv.PYTHONPATH)"
)
"""The fix for a serializer that a process does not know."""


class StateTableError(StreamJobError, ValueError):
    """A table of state, or an option of it, does not exist or is invalid; the message lists what exists."""


@frozen
class TableOptions:
    """The state of a table, its place, and what to read of it.

    ``columns`` are the columns to read, None for all: Spark does not report which of them a query needs. ``modules``
    define serializers of the program and are imported wherever state is read. With ``as_text``, values that no column
    type covers (decimals, unbounded numbers) are text; other decimals have ``decimal_scale``
    digits after the point. ``high_availability`` is that of the job of the directory.
    """

    path: str
    kind: str = KINDS[0]
    operator: str | None = None
    state: str | None = None
    checkpoint: int | None = None
    columns: tuple[str, ...] | None = None
    modules: tuple[str, ...] = ()
    as_text: bool = False
    decimal_scale: int = 18
    high_availability: JobServices | None = None
    moved: Mapping[str, str] | None = None

    @property
    def forms(self) -> ColumnForms:
        return ColumnForms(as_text=self.as_text, decimal_scale=self.decimal_scale)


@frozen
class WriteOptions:
    """The state that a frame is written as, and its place; see `written_state`."""

    path: str
    operator: str
    state: str
    source: str | None = None
    checkpoint: int | None = None
    descriptor: str | None = None
    max_parallelism: int | None = None
    modules: tuple[str, ...] = ()
    high_availability: JobServices | None = None


def parsed_options(options: Mapping[str, str]) -> TableOptions:
    """Parse the options of a table. `StateTableError` for an unknown option suggests the most similar one."""
    parsed = _parsed(options, _READ)
    if not parsed.get("path"):
        raise StateTableError(
            "a table of state needs the directory or URI of a savepoint, a checkpoint or a job: "
            'spark.read.format("statebackend").load(path)'
        )
    return TableOptions(**parsed)


def parsed_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a savepoint to write; raises as `parsed_options`."""
    parsed = _parsed(options, _WRITTEN)
    missing = [name for name in ("path", "operator", "state") if not parsed.get(name)]
    if missing:
        raise StateTableError(
            f"a savepoint needs a path, an operator and a state; {', '.join(missing)} is missing: "
            'frame.write.format("statebackend").mode("append").option("operator", ...).option("state", ...).save(path)'
        )
    return WriteOptions(**parsed)


def _parsed(options: Mapping[str, str], known: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for name, text in options.items():
        parse = known.get(name.lower())
        if parse is None:
            raise StateTableError(
                f"there is no option {name!r} of a table of state; {_did_you_mean(name.lower(), list(known))}"
            )
        parsed[_ATTRIBUTES.get(name.lower(), name.lower())] = parse(text)
    return parsed


def _did_you_mean(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"


def _kind(text: str) -> str:
    if text.lower() not in KINDS:
        raise StateTableError(f"there are no tables of the kind {text!r}; {_did_you_mean(text.lower(), list(KINDS))}")
    return text.lower()


def _is_whole_number(text: str) -> bool:
    # Python reads the digits of every script.
    return text.isascii() and text.isdecimal()


def _checkpoint(text: str) -> int:
    if not _is_whole_number(text):
        raise StateTableError(f"the option checkpoint is the id of a checkpoint, such as 17, not {text!r}")
    return int(text)


def _max_parallelism(text: str) -> int:
    if not _is_whole_number(text):
        raise StateTableError(f"the option max_parallelism must be a whole number, not {text!r}")
    return int(text)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise StateTableError(f"the option as_text is true or false, not {text!r}")
    return text.lower() == "true"


def _decimal_scale(text: str) -> int:
    if not _is_whole_number(text) or int(text) > 38:
        raise StateTableError(f"the option decimal_scale is a whole number from 0 to 38, not {text!r}")
    return int(text)


def _zookeeper(text: str) -> JobServices:
    try:
        return ZooKeeperHighAvailability.at(text)
    except InvariantViolationError as error:
        raise StateTableError(
            f"the option zookeeper is HOSTS[/ROOT], such as host:2181/statebackend: {error}"
        ) from error


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _moved(text: str) -> Mapping[str, str]:
    pairs = [part.partition("=") for part in _names(text)]
    if not all(old and new for old, _, new in pairs):
        raise StateTableError(f"the option moved is OLD=NEW, as file:/old/checkpoints=/new/checkpoints, not {text!r}")
    return {old: new for old, _, new in pairs}


_READ: Final[Mapping[str, Callable[[str], Any]]] = {
    "path": str,
    "kind": _kind,
    "operator": str,
    "state": str,
    "checkpoint": _checkpoint,
    "columns": _names,
    "modules": _names,
    "as_text": _truth,
    "decimal_scale": _decimal_scale,
    "zookeeper": _zookeeper,
    "moved": _moved,
}
"""The parser of each option of a table to read."""

_ATTRIBUTES: Final[Mapping[str, str]] = {"zookeeper": "high_availability"}
"""Options whose attribute has another name."""

_WRITTEN: Final[Mapping[str, Callable[[str], Any]]] = {
    **{name: _READ[name] for name in ("path", "operator", "state", "checkpoint", "modules", "zookeeper")},
    "source": str,
    "descriptor": str,
    "max_parallelism": _max_parallelism,
}
"""The parser of each option of a savepoint to write."""


@frozen
class Program:
    """The serializers of a program, for another process: its registrations, and modules to import."""

    known: ProgramModules | None
    modules: tuple[str, ...]

    def install(self) -> None:
        """Register them in this process; raise `StateTableError` for a module that cannot be imported."""
        if self.known is not None:
            self.known.install()
        allow_snapshot_modules(*self.modules)
        for module in self.modules:
            _import(module)


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise StateTableError(
            f"the module {module!r} of the option modules cannot be imported ({error}): {HOW_TO_SHIP}"
        ) from error
