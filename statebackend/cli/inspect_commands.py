"""The commands `inspect`, `show`, `schema` and `diff`, which read one or two checkpoints or savepoints.

Answers are plain data, alike for people and programs.

`show` accepts conditions such as ``value.sales>3``, ``key=shop 7``, ``value.note!=null``:

    condition := path operator literal     path := column ("." field)*     operator := = | != | < | <= | > | >=

A path starts with a column of the entries and continues through fields of records or text keys of maps. It must exist
in the schema. The literal is parsed as the type there, and values are compared as that type
(`statebackend.savepoint.conditions`). ``null`` is compared with = and != only. A field that an entry does not have is
null, and null is neither less nor greater.

`diff` compares schemas, and with ``--entries`` all entries (`statebackend.savepoint.inspection`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from operator import ge, gt, le, lt
from typing import Annotated, Any, Final

import typer
from attrs import frozen

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.cli.opening import open_savepoint, open_with_progress, spark_checkpoint
from statebackend.cli.streams import DIFFERENT
from statebackend.cli.terminal import (
    AsJson,
    CheckpointId,
    Moved,
    OperatorUid,
    Place,
    StateName,
    ZooKeeper,
    print_answer,
    print_difference,
    print_entries,
    print_inspection,
    print_schemas,
    spooled_answers,
)
from statebackend.savepoint.conditions import StoredType, Unparsed, equals, part_of
from statebackend.savepoint.errors import InvalidKeyError, UnknownKeyError
from statebackend.savepoint.inspection import (
    difference_of_entries,
    difference_of_schemas,
    displayed_schemas,
    entries_of,
    inspection,
    matched,
    schemas,
)
from statebackend.savepoint.plain_values import plain_value
from statebackend.savepoint.savepoint import Savepoint
from statebackend.savepoint.state_entries import OperatorStateElements, StateEntries
from statebackend.savepoint.state_location import is_spark_checkpoint
from statebackend.state.clock import wall_clock

__all__ = [
    "Condition",
    "ConditionError",
    "chosen_entries",
    "namespace_condition",
    "parsed_condition",
]


_NAME: Final = r"(?:`(?:[^`]|``)+`|[^\s=!<>.`][^\s=!<>.]*|)"
"""A part of a path. Any name may be in backticks, as in SQL. The first character decides, so a search is fast."""

_PATH: Final = rf"(?=[^\s=!<>]){_NAME}(?:\.{_NAME})*"
_CONDITION: Final = re.compile(rf"\s*({_PATH})\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", re.DOTALL)

_RELATIONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}


class ConditionError(ValueError):
    """A text is not a condition, or does not fit the entries of the state."""


@frozen
class Condition:
    """A parsed condition. ``text`` names it in errors."""

    text: str
    path: tuple[str, ...]
    relation: str
    literal: Unparsed

    def test(self, columns: Mapping[str, StoredType]) -> Callable[[Any], bool]:
        """Return the test of an entry with these columns.

        Raises:
            ConditionError: The path does not exist, or the literal is of another type.
        """
        stored = self._type(columns)
        try:
            holds = self._compared(stored)
        except ValueError as error:
            raise ConditionError(f"{self.text}: {error}") from error
        column, *fields = self.path

        def test(entry: Any) -> bool:
            value = getattr(entry, _ATTRIBUTES.get(column, column))
            for name in fields:
                value = None if value is None else part_of(value, name)
            return holds(value)

        return test

    def _type(self, columns: Mapping[str, StoredType]) -> StoredType:
        column, *fields = self.path
        if column not in columns:
            raise ConditionError(f"{self.text}: the entries have no {column!r}; they have {', '.join(columns)}")
        stored, path = columns[column], column
        for name in fields:
            part = stored.part(name)
            if part is None:
                known = f"; it has the fields {', '.join(stored.field_names)}" if stored.field_names else ""
                if stored.name == "map":
                    known = "; a path leads through text keys of a map only, compare its other keys in an export"
                raise ConditionError(f"{self.text}: {path} is of type {stored.name} and has no field {name!r}{known}")
            stored, path = part, f"{path}.{name}"
        return stored

    def _compared(self, stored: StoredType) -> Callable[[Any], bool]:
        if self.relation in ("=", "!="):
            is_equal, wanted = equals(stored, self.literal), self.relation == "="
            return lambda value: is_equal(value) is wanted
        if self.literal == "null":
            raise ValueError("null has no order: use = or !=")
        relation = _RELATIONS[self.relation]
        sort_key, key = stored.order(self.literal)
        return lambda value: value is not None and stored.accepts(value) and bool(relation(sort_key(value), key))


_ATTRIBUTES: Final = {"subtask": "subtask_index"}
"""Columns whose attribute of an entry has another name."""


def parsed_condition(text: str) -> Condition:
    """Parse a condition. Raises `ConditionError` with an example."""
    matched = _CONDITION.fullmatch(text)
    if matched is None:
        raise ConditionError(
            f"--where {text!r} is not a condition; write a path, one of = != {' '.join(_RELATIONS)}, and a value: "
            f"value.n>3, or value.`a b`>3"
        )
    return Condition(f"--where {text!r}", _names_in(matched[1]), matched[2], Unparsed(matched[3]))


def _names_in(path: str) -> tuple[str, ...]:
    names = [found[1] for found in re.finditer(rf"(?:^|\.)({_NAME})", path)]
    return tuple(name[1:-1].replace("``", "`") if name.startswith("`") else name for name in names)


def namespace_condition(text: str) -> Condition:
    """Return the condition for a namespace: a text, or JSON with some of its fields, such as ``{"start": 0}``."""
    return Condition(f"--namespace {text!r}", ("namespace",), "=", Unparsed(text))


def chosen_entries(
    savepoint: Savepoint, operator: str, state: str, key: Sequence[str] | None
) -> StateEntries | OperatorStateElements:
    """Return the entries that the arguments of a command choose. Raises `typer.BadParameter` for an invalid key."""
    try:
        return entries_of(savepoint, operator, state, key or ())
    except InvalidKeyError as error:
        raise typer.BadParameter(f"--key: {error}") from error


def inspect(
    path: Place,
    checkpoint: CheckpointId = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read every file and compare it with its checksum.")] = False,
    counts: Annotated[
        bool, typer.Option("--counts/--no-counts", help="Read all keyed state once, to count its entries.")
    ] = True,
    zookeeper: ZooKeeper = None,
    moved: Moved = None,
    as_json: AsJson = False,
) -> None:
    """Describe a checkpoint or savepoint: job, operators, states, entries, sizes, event time, source and sinks."""
    with open_with_progress(path, checkpoint, zookeeper, moved) as savepoint:
        verified = sum(1 for _ in savepoint.verify()) if verify else None
        answer = inspection(savepoint, now_ms=wall_clock(), counts=counts)
    if verified is not None:
        answer["verified_files"] = verified
    print_answer(as_json, answer, print_inspection)


def show(
    path: Place,
    operator: OperatorUid,
    state: StateName,
    key: Annotated[
        list[str] | None, typer.Option("--key", help="Only this key; for a key of several columns, once for each.")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option("--where", help="Only entries that fit, such as value.n>3 or namespace.start=0.")
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", help='Only this namespace: text, or JSON such as {"start": 0} for a window.'),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most this many entries.")] = None,
    checkpoint: CheckpointId = None,
    zookeeper: ZooKeeper = None,
    moved: Moved = None,
    as_json: AsJson = False,
) -> None:
    """Print the entries of a state, decoded without the program's classes.

    For a Spark query, OPERATOR is the number of the operator, and STATE is a variable, ``timers`` or ``default``.
    """
    if is_spark_checkpoint(CheckpointFileSystem.from_uri(path)):
        if key or where or moved or any(one is not None for one in (namespace, checkpoint, zookeeper)):
            raise typer.BadParameter(f"{path} is a checkpoint of Spark: of the options, only --limit and --json apply")
        _show_spark(path, operator, state, limit, as_json)
        return
    savepoint = open_savepoint(path, checkpoint, zookeeper, moved)
    try:
        conditions = [parsed_condition(text) for text in where or ()]
    except ConditionError as error:
        raise typer.BadParameter(str(error)) from error
    if namespace is not None:
        conditions.append(namespace_condition(namespace))
    entries = chosen_entries(savepoint, operator, state, key)
    try:
        found = islice(entries.printed([one.test for one in conditions]), limit)
    except ConditionError as error:
        raise typer.BadParameter(str(error)) from error
    first = list(islice(found, 1))
    of_key = f" of key {', '.join(key)!r}" if key else ""
    in_namespace = f" in the namespace {namespace}" if namespace is not None else ""
    that_fits = f" that fits --where {' --where '.join(map(repr, where))}" if where else ""
    nothing = f"state {state!r} of operator {operator!r} has no entry{of_key}{in_namespace}{that_fits}"
    if first or as_json or not key:
        print_entries(as_json, chain(first, found), nothing)
    if key and not first:
        raise UnknownKeyError(nothing)


def _show_spark(path: str, operator: str, state: str, limit: int | None, as_json: bool) -> None:
    checkpoint = spark_checkpoint(path)
    number = int(operator) if operator.isascii() and operator.isdecimal() else None
    is_timers = state == "timers" and state not in checkpoint.operator(number).states
    table = checkpoint.timers(operator=number) if is_timers else checkpoint.table(state, operator=number)
    rows = checkpoint.rows(table.drop("partition_id"))
    entries = (
        {_SPARK_COLUMNS.get(name, name): plain_value(value) for name, value in row.asDict(recursive=True).items()}
        for row in rows
    )
    nothing = f"state {state!r} of operator {operator!r} has no entry"
    print_entries(as_json, islice(entries, limit), nothing)


_SPARK_COLUMNS: Final = {
    "list_element": "value",
    "user_map_key": "user_key",
    "user_map_value": "value",
    "expiration_timestamp_ms": "value",
}
"""Columns of Spark's ``statestore`` source, and the columns of entries here."""


def schema(
    path: Place,
    checkpoint: CheckpointId = None,
    zookeeper: ZooKeeper = None,
    moved: Moved = None,
    as_json: AsJson = False,
) -> None:
    """Print the types of all states: records with their fields, former names and defaults."""
    answer = schemas(open_savepoint(path, checkpoint, zookeeper, moved))
    print_answer(as_json, answer if as_json else displayed_schemas(answer), print_schemas)


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD")],
    new: Annotated[str, typer.Argument(metavar="NEW")],
    entries: Annotated[bool, typer.Option("--entries", help="Compare keys and values too.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most this many differing entries.")] = None,
    zookeeper: ZooKeeper = None,
    moved: Moved = None,
    as_json: AsJson = False,
) -> None:
    """Compare two checkpoints or savepoints. The status is 1 if they differ."""
    with spooled_answers() as found:
        with open_with_progress(old, None, zookeeper, moved) as one:
            # Both are read in step, so one progress display is enough.
            one, other = matched(one, open_savepoint(new, None, zookeeper, moved))
            before, after = schemas(one), schemas(other)
            if not as_json:
                before, after = displayed_schemas(before), displayed_schemas(after)
            of_schemas = difference_of_schemas(before, after)
            for answer in islice(difference_of_entries(one, other), limit) if entries else ():
                found.add(answer)
        print_difference(as_json, of_schemas, found if entries else None)
        if of_schemas or len(found):
            raise typer.Exit(DIFFERENT)
