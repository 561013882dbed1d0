"""The savepoints written by Flink, and their content as plain data in the form of their ``expected.json``.

If ``FLINK_LIB`` is the directory of Flink's jars, `written_by` lets Flink write the savepoint of an archive again.
"""

from __future__ import annotations

import enum
import json
import os
import pathlib
import subprocess
import tarfile
from collections.abc import Mapping
from typing import Any

import attrs

import typeserializers as ts
from statebackend.savepoint.savepoint import Savepoint
from statebackend.state.operator_state_descriptors import OperatorStateMode

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "flink_savepoints"
NAMES = tuple(sorted(path.name for path in GOLDEN.iterdir() if path.is_dir()))

FLINK_LIBRARIES = os.environ.get("FLINK_LIB", "")

_MODES = {
    OperatorStateMode.SPLIT: "SPLIT_DISTRIBUTE",
    OperatorStateMode.UNION: "UNION",
    OperatorStateMode.BROADCAST: "BROADCAST",
}


def run_engine(source: pathlib.Path, *arguments: object, classes: pathlib.Path) -> str:
    """Run the program with Flink, and return its output."""
    names = ("flink-dist-*.jar", "log4j-api-*.jar", "log4j-core-*.jar", "log4j-slf4j-impl-*.jar")
    jars = ":".join(str(jar) for name in names for jar in pathlib.Path(FLINK_LIBRARIES).glob(name))
    subprocess.run(["javac", "-encoding", "UTF-8", "-cp", jars, "-d", classes, source], check=True)
    opens = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "util", "time")]
    command = ["java", "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8", *opens, "-cp", f"{jars}:{classes}"]
    command += [source.stem, *map(str, arguments)]
    return subprocess.run(command, check=True, timeout=300, stdout=subprocess.PIPE, encoding="utf-8").stdout


def written_by(program: str, archive: str, directory: pathlib.Path, *options: str) -> pathlib.Path:
    """Return a canonical savepoint of the program: the one in the archive, or with ``FLINK_LIB`` a new one."""
    if not FLINK_LIBRARIES:
        with tarfile.open(GOLDEN / archive) as stored:
            stored.extractall(directory, filter="data")
        return directory
    run_engine(pathlib.Path(__file__).with_name(program), directory / "state", 128, *options, classes=directory)
    [savepoint] = (directory / "state" / "CANONICAL").iterdir()
    return savepoint


def expected_of(name: str) -> dict[str, Any]:
    """The content of a savepoint in the form of its job's model."""
    content: dict[str, Any] = json.loads((GOLDEN / name / "expected.json").read_text())
    return content


def found_in(savepoint: Savepoint, expected: Mapping[str, Any]) -> dict[str, Any]:
    """The content of the expected operators and states of the savepoint, with all of their timers."""
    return {
        "keyedOperators": {
            uid: {
                "states": {
                    name: keyed_state(savepoint, uid, name)
                    for name, state in savepoint.operators[uid].states.items()
                    if state.kind != "priority_queue"
                },
                "timers": {
                    name: timers(savepoint, uid, name)
                    for name in operator["timers"] or _queues(savepoint, uid)
                    if name in operator["timers"] or timers(savepoint, uid, name)
                },
            }
            for uid, operator in expected["keyedOperators"].items()
        },
        "operatorState": {
            uid: {name: operator_state(savepoint, uid, name) for name in savepoint.operators[uid].operator_states}
            for uid in expected["operatorState"]
        },
    }


def wanted_of(expected: Mapping[str, Any]) -> dict[str, Any]:
    """The expected content in the order and the form of `found_in`."""
    return {
        "keyedOperators": {
            uid: {
                "states": {
                    name: sorted((_wanted_entry(entry) for entry in state["entries"]), key=_text)
                    for name, state in operator["states"].items()
                },
                "timers": {name: sorted(entries, key=_text) for name, entries in operator["timers"].items()},
            }
            for uid, operator in expected["keyedOperators"].items()
        },
        "operatorState": {
            uid: {
                name: {"mode": state["mode"], "perSubtask": [_sorted_maps(one) for one in state["perSubtask"]]}
                for name, state in operator["states"].items()
            }
            for uid, operator in expected["operatorState"].items()
        },
    }


def _queues(savepoint: Savepoint, uid: str) -> list[str]:
    return [name for name, state in savepoint.operators[uid].states.items() if state.kind == "priority_queue"]


def _wanted_entry(entry: Mapping[str, Any]) -> Any:
    # The result of the aggregate function is not stored.
    return _sorted_maps({name: value for name, value in entry.items() if name != "result"})


def _sorted_maps(value: Any) -> Any:
    if isinstance(value, list):
        return [_sorted_maps(one) for one in value]
    if isinstance(value, dict):
        plain = {name: _sorted_maps(one) for name, one in value.items()}
        return {**plain, "entries": sorted(plain["entries"], key=_text)} if plain.get("@type") == "map" else plain
    return value


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def keyed_state(savepoint: Savepoint, uid: str, name: str) -> list[Any]:
    """The entries of a state. The entries of a map with one key are merged."""
    is_map = savepoint.schema(uid, name).kind == "map"
    entries: dict[str, dict[str, Any]] = {}
    for entry in savepoint.read(uid, name):
        place = {"key": plain(entry.key)} | ({} if entry.namespace is None else {"namespace": plain(entry.namespace)})
        value = _timed(entry.value, entry.last_access_ms)
        if is_map:
            held = entries.setdefault(_text(place), {**place, "value": {"@type": "map", "entries": []}})
            held["value"]["entries"].append([plain(entry.user_key), value])
            continue
        assert _text(place) not in entries, f"{name} has two entries of {place}"
        entries[_text(place)] = {**place, "value": value}
    return sorted(map(_sorted_maps, entries.values()), key=_text)


def _timed(value: Any, time_ms: Any) -> Any:
    if time_ms is None:
        return plain(value)
    if isinstance(time_ms, tuple):
        return [_timed(one, time) for one, time in zip(value, time_ms, strict=True)]
    return {"value": plain(value), "timestamp": time_ms}


def timers(savepoint: Savepoint, uid: str, name: str) -> list[Any]:
    """The timers of a queue."""
    found = (
        {"key": plain(entry.key), "timestamp": entry.value}
        | ({} if entry.namespace is None else {"namespace": plain(entry.namespace)})
        for entry in savepoint.read(uid, name)
    )
    return sorted(found, key=_text)


def operator_state(savepoint: Savepoint, uid: str, name: str) -> dict[str, Any]:
    """The elements of an operator state, or the entries of each copy of a broadcast state."""
    operator = savepoint.operators[uid]
    mode = operator.operator_states[name].mode
    is_broadcast = mode is OperatorStateMode.BROADCAST
    subtasks: list[list[Any]] = [[] for _ in range(operator.parallelism)]
    for element in savepoint.read_operator_state(uid, name):
        value = plain(element.value)
        subtasks[element.subtask_index].append([plain(element.key), value] if is_broadcast else value)
    copies = [{"@type": "map", "entries": sorted(one, key=_text)} for one in subtasks] if is_broadcast else subtasks
    return {"mode": _MODES[mode], "perSubtask": copies}


def plain(value: Any) -> Any:
    """A value in the JSON form of the golden files."""
    if isinstance(value, ts.TimeWindow):
        return {"@type": "timeWindow", "start": value.start, "end": value.end}
    if isinstance(value, tuple):
        return {"@type": "tuple", "arity": len(value), "fields": [plain(one) for one in value]}
    if isinstance(value, dict):
        return {"@type": "map", "entries": sorted(([plain(key), plain(one)] for key, one in value.items()), key=_text)}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, enum.Enum):
        ordinal = list(type(value)).index(value)
        return {"@type": "enum", "class": "golden.types.Color", "name": value.name, "declaredOrdinal": ordinal}
    if attrs.has(type(value)):
        fields = {field.name: plain(getattr(value, field.name)) for field in attrs.fields(type(value))}
        return {"@type": "pojo", "class": f"golden.types.{type(value).__name__}", "fields": fields}
    return value
