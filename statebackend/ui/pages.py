"""Builds the pages from what `statebackend.savepoint.inspection` returns, which the command line prints.

A page is one HTML document without scripts. Names and values may come from anyone. `html_pages` escapes them, and long
ones are cut here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from snapshots.errors import cut
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.savepoint.html_pages import (
    Html,
    Link,
    Section,
    Series,
    Table,
    Tile,
    checkpoint_growth,
    document,
    element,
    figure,
    figures,
    joined,
    line_plot,
    paragraph,
    sizes_section,
    text,
    tiles,
)
from statebackend.savepoint.inspection import Answer, inspection, schemas
from statebackend.savepoint.plain_values import printed_value
from statebackend.savepoint.savepoint import Savepoint
from statebackend.savepoint.sizes import (
    NOTHING,
    counted,
    format_bytes,
    format_duration,
    format_short_bytes,
    format_time,
)
from statebackend.savepoint.state_entries import OperatorStateElement
from statebackend.savepoint.statistics import checkpoint_sizes
from statebackend.savepoint.stored_entries import StateEntry
from statebackend.state.priority_queue import displayed_kind, displayed_state
from statebackend.streaming.compatibility_check import COMPATIBILITY_COLUMNS, Comparison, Outcome
from statebackend.ui.places import EntriesPage, Place

MOST_CHARACTERS: Final = 300
"""A value in a table of entries is cut to so many characters."""

MOST_OF_ONE: Final = 20_000
"""A value of an entry that was looked up is cut to so many."""


def _address(path: str, **parameters: object) -> str:
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"{path}?{urlencode(given, doseq=True)}"


def _trail(*links: Link) -> Html:
    shown = [Link("Jobs and savepoints", "/"), *links]
    return element("nav", joined((one.html() for one in shown), " / "), {"aria-label": "Where you are"})


def _of_place(place: Place) -> Link:
    return Link(cut(place.name, MOST_CHARACTERS), _address("/job", at=place.id))


def _of_checkpoint(place: Place, metadata: CheckpointMetadata) -> Link:
    kind = metadata.kind.value.lower()
    return Link(
        f"{kind} {metadata.checkpoint_id}", _address("/checkpoint", at=place.id, checkpoint=metadata.checkpoint_id)
    )


def places_page(found: Sequence[tuple[Place, Sequence[CheckpointMetadata] | str]]) -> str:
    """Return the first page. Of each place it is passed the checkpoints, oldest first, or why they cannot be read."""
    rows: list[Sequence[str | Link]] = []
    for place, checkpoints in found:
        if isinstance(checkpoints, str):
            rows.append((_of_place(place), "not readable", cut(checkpoints, MOST_CHARACTERS), "", "", "", ""))
        elif not checkpoints:
            rows.append((_of_place(place), "job", "no completed checkpoint yet", "", "", "", ""))
        else:
            newest = checkpoint_sizes(checkpoints[-1])
            rows.append(
                (
                    _of_place(place),
                    newest.job_name,
                    _of_checkpoint(place, checkpoints[-1]),
                    format_time(newest.timestamp_ms),
                    format_bytes(newest.size_bytes),
                    str(len(checkpoints)),
                    format_time(newest.watermark_ms),
                )
            )
    columns = ("directory", "job", "newest", "taken (UTC)", "state", "kept", "watermark (UTC)")
    body: list[Html | Section] = [Table("Jobs and savepoints", columns, rows, {4, 5}).html()]
    names = [(place.id, place.name) for place, checkpoints in found if not isinstance(checkpoints, str)]
    if len(names) > 1:
        body.append(Section("Compare two", [_compare_form(names, names[0][0], names[1][0])]))
    return document("Jobs and savepoints", kind="Statebackend", facts=[], body=body)


def job_page(place: Place, checkpoints: Sequence[CheckpointMetadata], others: Sequence[Place]) -> str:
    """Return the page of a job or savepoint. The checkpoints are oldest first."""
    if not checkpoints:
        body: list[Html | Section] = [_trail(), paragraph("The job has not completed a checkpoint yet.")]
        return document(place.name, kind="Job", facts=[("location", place.uri)], body=body)
    sizes = [checkpoint_sizes(one) for one in checkpoints]
    newest = sizes[-1]
    durations = [_duration_s(one) for one in checkpoints]
    numbers = [
        Tile(newest.kind.capitalize(), str(newest.checkpoint_id), f"{len(sizes)} kept"),
        Tile("State", format_short_bytes(newest.size_bytes), f"in {counted(newest.file_count, 'file')}"),
        Tile("Epoch to checkpoint", format_duration(durations[-1]), "from its processing time"),
        Tile("Watermark", format_time(newest.watermark_ms), "no event time" if newest.watermark_ms is None else "UTC"),
    ]
    rows: list[Sequence[str | Link]] = []
    for index in reversed(range(len(sizes))):
        one = sizes[index]
        grown = None if index == 0 else one.size_bytes - sizes[index - 1].size_bytes
        rows.append(
            (
                _of_checkpoint(place, checkpoints[index]),
                format_time(one.timestamp_ms),
                format_duration(durations[index]),
                format_bytes(one.size_bytes),
                NOTHING if grown is None else f"{'-' if grown < 0 else '+'}{format_bytes(abs(grown))}",
                f"{one.file_count:,}",
                format_time(one.watermark_ms),
            )
        )
    columns = ("checkpoint", "taken (UTC)", "duration", "state", "growth", "files", "watermark (UTC)")
    parts = [Table("Kept, newest first", columns, rows, {2, 3, 4, 5}).html()]
    if len(sizes) > 1:
        ends = f"checkpoint {sizes[0].checkpoint_id}", f"checkpoint {newest.checkpoint_id}"
        parts.insert(0, figures([_size_plot([one.size_bytes for one in sizes], ends), _duration_plot(durations, ends)]))
        parts += checkpoint_growth(sizes)
    body = [_trail(), tiles(numbers), Section("Checkpoints", parts)]
    names = [(one.id, one.name) for one in others]
    if len(names) > 1:
        other = next((one for one, _ in names if one != place.id), place.id)
        body.append(Section("Compare", [_compare_form(names, place.id, other)]))
    if len(sizes) > 1:
        ids = [str(one.checkpoint_id) for one in reversed(sizes)]
        body.append(Section("Compare two checkpoints", [_compare_checkpoints_form(place, ids)]))
    body.append(Section("Check a schema lockfile", [_lock_form(place, None)]))
    facts = [("location", place.uri), ("job", newest.job_id), ("key groups", str(newest.max_parallelism))]
    return document(newest.job_name, kind="Job" if place.is_job else "Savepoint", facts=facts, body=body)


def _duration_s(metadata: CheckpointMetadata) -> float | None:
    """The time from the processing time of the epoch, fixed at its start, until its checkpoint was stored."""
    start_ms = metadata.processing_time_ms
    return None if start_ms is None or start_ms > metadata.timestamp_ms else (metadata.timestamp_ms - start_ms) / 1000


def _size_plot(sizes: Sequence[int], ends: tuple[str, str]) -> Html:
    plot = line_plot(
        [Series("State", sizes)],
        title="Bytes of state by checkpoint",
        shown=format_short_bytes,
        ends=ends,
        is_binary=True,
    )
    return figure("Size of the state", plot)


def _duration_plot(durations: Sequence[float | None], ends: tuple[str, str]) -> Html:
    plot = line_plot([Series("Duration", durations)], title="Seconds by checkpoint", shown=format_duration, ends=ends)
    return figure("From the start of the epoch to its checkpoint", plot)


def checkpoint_page(place: Place, savepoint: Savepoint, now_ms: int, *, counts: bool) -> str:
    """Return the page of a checkpoint: operators, states, event time, source and sinks."""
    metadata, described = savepoint.metadata, inspection(savepoint, now_ms=now_ms, counts=counts)
    checkpoint_id = metadata.checkpoint_id
    states = sum(len(one["states"]) + len(one["operator_states"]) for one in described["operators"])
    numbers = [
        Tile("Taken", format_time(metadata.timestamp_ms), f"{format_duration(described['age_s'])} ago"),
        Tile("State", format_short_bytes(metadata.size_bytes), f"in {counted(described['files'], 'file')}"),
        Tile("Operators", str(len(described["operators"])), counted(states, "state")),
        Tile("Epoch to checkpoint", format_duration(_duration_s(metadata)), "from its processing time"),
    ]
    body: list[Html | Section] = [
        _trail(_of_place(place)),
        tiles(numbers),
        Section("States", [_states(place, checkpoint_id, described["operators"], counts)]),
        Section("Event time and timers", _event_time(metadata)),
    ]
    flow = [
        ("source", ", ".join((described["source"] or {}).get("sources", ()))),
        ("source positions", cut((described["source"] or {}).get("offsets", ""), MOST_OF_ONE)),
        *((f"sink {name}", identity or "") for name, identity in described["sinks"].items()),
    ]
    rows = [row for row in flow if row[1]]
    if rows:
        body.append(
            Section("Source and sinks", [Table("What the next epoch continues from", ("part", "is at"), rows).html()])
        )
    if metadata.operators:
        body.append(sizes_section(checkpoint_sizes(metadata)))
    body.append(Section("Check a schema lockfile", [_lock_form(place, checkpoint_id)]))
    facts = [
        ("location", savepoint.uri),
        ("job", metadata.job_id),
        ("key groups", str(metadata.max_parallelism)),
        *([("continues", f"checkpoint {metadata.parent_checkpoint_id}")] if metadata.parent_checkpoint_id else []),
        *([("restored from", str(metadata.restored_from))] if metadata.restored_from else []),
    ]
    title = f"{metadata.job_name}, {described['kind']} {checkpoint_id}"
    return document(title, kind=described["kind"].capitalize(), facts=facts, body=body)


def _states(place: Place, checkpoint_id: int, operators: Sequence[Answer], counts: bool) -> Html:
    rows: list[Sequence[str | Link]] = []
    for operator in operators:
        every = [
            *operator["states"],
            *({**one, "kind": f"{one['mode']}, without keys"} for one in operator["operator_states"]),
        ]
        for one in every:
            address = _address(
                "/state", at=place.id, checkpoint=checkpoint_id, operator=operator["uid"], state=one["name"]
            )
            types = ", ".join(f"{role} {name}" for role, name in one.get("types", {}).items())
            count = one.get("entries", one.get("elements"))
            rows.append(
                (
                    operator["uid"],
                    Link(displayed_state(one["name"]), address),
                    displayed_kind(one["kind"]),
                    cut(types, MOST_CHARACTERS),
                    NOTHING if count is None else f"{count:,}",
                    format_bytes(one["entry_bytes"]) if "entry_bytes" in one else NOTHING,
                )
            )
    table = Table("Keyed and operator state", ("operator", "state", "kind", "types", "entries", "bytes"), rows, {4, 5})
    if counts:
        return table.html()
    counted_page = _address("/checkpoint", at=place.id, checkpoint=checkpoint_id, counts=1)
    return joined(
        [table.html(), element("p", Link("Count the entries (reads all keyed state once)", counted_page).html())]
    )


def _event_time(metadata: CheckpointMetadata) -> list[Html]:
    timers = [
        (one.operator_uid, format_time(one.event_time_ms), format_time(one.processing_time_ms))
        for one in metadata.timers_due
    ]
    parts = [Table("Earliest timers", ("operator", "event time (UTC)", "processing time (UTC)"), timers).html()]
    watermarks = metadata.watermarks
    if watermarks is None:
        return [*parts, paragraph("Watermarks: none.")]
    channels = [
        (
            one.source,
            one.channel,
            format_time(one.watermark_ms),
            format_time(one.largest_timestamp_ms),
            _idle(one.is_idle),
        )
        for one in watermarks.channels
    ]
    nodes = [(one.node, format_time(one.watermark_ms), _idle(one.is_idle)) for one in watermarks.nodes]
    columns = ("source", "channel", "watermark (UTC)", "largest timestamp (UTC)", "")
    return [
        *parts,
        paragraph(f"Watermark of all sources: {format_time(watermarks.watermark_ms)} (UTC)"),
        Table("Channels", columns, channels).html(),
        Table("Nodes", ("node", "watermark (UTC)", ""), nodes).html(),
    ]


def _idle(is_idle: bool) -> str:
    return "idle" if is_idle else ""


def _shown(value: Any, characters: int) -> str:
    """Return a value as text: texts as they are, others as JSON. A long one is cut, with its length."""
    plain = printed_value(value)
    if plain is None:
        return ""
    shown = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    return shown if len(shown) <= characters else f"{shown[:characters]}… ({len(shown):,} characters)"


def entry_row(entry: StateEntry, *, is_timer: bool, characters: int) -> Sequence[str]:
    """Return the cells of an entry, in the order of `ENTRY_COLUMNS`."""
    value = f"{format_time(entry.value)} ({entry.value} ms)" if is_timer else _shown(entry.value, characters)
    parts = (entry.key, entry.namespace, entry.user_key)
    return (*(_shown(one, characters) for one in parts), value, _last_access(entry, characters))


def _last_access(entry: StateEntry, characters: int) -> str:
    accessed = entry.last_access_ms
    return format_time(accessed) if isinstance(accessed, int) else _shown(accessed, characters)


def element_row(one: OperatorStateElement) -> Sequence[str]:
    """Return the cells of an element of operator state, in the order of `ELEMENT_COLUMNS`."""
    return str(one.subtask_index), _shown(one.key, MOST_CHARACTERS), _shown(one.value, MOST_CHARACTERS)


ENTRY_COLUMNS: Final = ("key", "namespace", "user key", "value", "last access (UTC)")
ELEMENT_COLUMNS: Final = ("subtask", "key", "value")


def state_page(
    place: Place,
    savepoint: Savepoint,
    operator: str,
    state: str,
    page: EntriesPage,
    *,
    columns: Sequence[str],
    key: Sequence[str],
) -> str:
    """Return the page of a state: its schema, a look-up by key, and some entries."""
    metadata = savepoint.metadata
    here = {"at": place.id, "checkpoint": metadata.checkpoint_id, "operator": operator, "state": state}
    of_operator = schemas(savepoint)[operator]
    schema = of_operator["states"].get(state) or of_operator["operator_states"][state]
    parts = [_without_empty_columns("Entries", columns, page.rows)]
    if page.next_place is not None:
        group, skip = page.next_place
        following = _address("/state", **here, key=list(key), group=group, skip=skip)
        parts.append(element("p", Link("Next entries", following).html()))
    if key:
        parts.append(element("p", Link("All entries", _address("/state", **here)).html()))
    body: list[Html | Section] = [
        _trail(_of_place(place), _of_checkpoint(place, metadata)),
        Section("Schema", _schema(schema)),
    ]
    key_columns = savepoint.key_columns(operator) if state in of_operator["states"] else ()
    if key_columns:
        body.append(Section("Look up a key", [_key_form(here, key_columns, key)]))
    body.append(Section("Entries" if not key else f"Entries of key {cut(', '.join(key), 80)}", parts))
    facts = [("operator", operator), ("kind", displayed_kind(schema["kind"]))]
    return document(displayed_state(state), kind="State", facts=facts, body=body)


def _without_empty_columns(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    used = [index for index, name in enumerate(columns) if name == "value" or any(row[index] for row in rows)]
    return Table(caption, [columns[one] for one in used], [[row[one] for one in used] for row in rows]).html()


def _schema(schema: Answer) -> list[Html]:
    rows: list[Sequence[str]] = []
    for role, described in schema["types"].items():
        rows.append((role, "", described["type"], described.get("unknown", "")))
        for record, content in described.get("records", {}).items():
            rows += [(role, f"{record}.{constant}", "constant", "") for constant in content.get("constants", ())]
            for name, part in content["fields"].items():
                former = ", ".join(part.get("former_names", ()))
                note = " ".join(
                    [
                        *([f"default {part['default']}"] if "default" in part else []),
                        *([f"formerly {former}"] if former else []),
                    ]
                )
                rows.append((role, f"{record}.{name}", part["type"], note))
    return [_without_empty_columns("Types", ("role", "field", "type", "note"), rows)]


def _field(name: str, label: str, value: str) -> Html:
    box = element("input", None, {"name": name, "value": value, "autocomplete": "off"})
    return element("label", joined([text(label), Html(" "), box]))


def _hidden(values: Mapping[str, object]) -> list[Html]:
    return [
        element("input", None, {"type": "hidden", "name": name, "value": value})
        for name, value in values.items()
        if value is not None
    ]


def _choice(name: str, label: str, options: Iterable[tuple[str, str]], chosen: str) -> Html:
    made = joined(
        element("option", text(cut(shown, 80)), {"value": value, "selected": "selected" if value == chosen else None})
        for value, shown in options
    )
    return element("label", joined([text(label), Html(" "), element("select", made, {"name": name})]))


def _form(action: str, parts: Sequence[Html], button: str, **attributes: str) -> Html:
    submit = element("button", text(button), {"type": "submit"})
    return element("form", joined([*parts, submit]), {"action": action, **attributes})


def _key_form(here: Mapping[str, object], key_columns: Sequence[str], key: Sequence[str]) -> Html:
    values = [*key, *[""] * len(key_columns)]
    labels = ["binary, in hexadecimal" if kind == "binary" else kind for kind in key_columns]
    fields = [_field("key", label, value) for label, value in zip(labels, values, strict=False)]
    return _form("/state", [*_hidden(here), *fields], "Look up")


def _compare_form(names: Sequence[tuple[str, str]], old: str, new: str) -> Html:
    return _form(
        "/difference",
        [_choice("old", "old", names, old), _choice("new", "new", names, new), _with_entries()],
        "Compare",
    )


def _compare_checkpoints_form(place: Place, ids: Sequence[str]) -> Html:
    options = [(one, f"checkpoint {one}") for one in ids]
    parts = [
        *_hidden({"old": place.id, "new": place.id}),
        _choice("old_checkpoint", "old", options, ids[1]),
        _choice("new_checkpoint", "new", options, ids[0]),
        _with_entries(),
    ]
    return _form("/difference", parts, "Compare")


def _with_entries() -> Html:
    box = element("input", None, {"type": "checkbox", "name": "entries", "value": "1"})
    return element("label", joined([box, text(" entries too (reads all state)")]))


def _lock_form(place: Place, checkpoint_id: int | None) -> Html:
    upload = element("input", None, {"type": "file", "name": "lock", "required": "required"})
    label = element("label", joined([text("state.lock "), upload]))
    target = _address("/compatibility", at=place.id, checkpoint=checkpoint_id)
    return _form(target, [label], "Check", method="post", enctype="multipart/form-data")


def difference_page(
    old: tuple[Place, CheckpointMetadata],
    new: tuple[Place, CheckpointMetadata],
    of_schemas: Sequence[Answer],
    of_entries: Sequence[Answer] | None,
    limit: int,
) -> str:
    """Return the page of a difference. ``of_entries`` is None if only schemas were compared."""
    changes = [
        (one["change"], one["path"], _shown(one["before"], MOST_CHARACTERS), _shown(one["after"], MOST_CHARACTERS))
        for one in of_schemas
    ]
    parts = [Table("Schemas", ("change", "path", "before", "after"), changes).html()]
    if of_entries is not None:
        rows = [
            (
                *(one["operator"], displayed_state(one["state"]), one["change"]),
                _shown(_address_of(one["before"] or one["after"]), MOST_CHARACTERS),
                *(
                    _shown(None if side is None else side["value"], MOST_CHARACTERS)
                    for side in (one["before"], one["after"])
                ),
            )
            for one in of_entries
        ]
        columns = ("operator", "state", "change", "entry", "before", "after")
        parts.append(Table(f"Entries, at most {limit}", columns, rows).html())
    facts = [
        (name, f"{place.name}, {metadata.kind.value.lower()} {metadata.checkpoint_id}")
        for name, (place, metadata) in (("old", old), ("new", new))
    ]
    body: list[Html | Section] = [_trail(_of_place(old[0]), _of_place(new[0])), Section("What changed", parts)]
    return document("Difference", kind="Comparison", facts=facts, body=body)


def _address_of(entry: Answer) -> Any:
    found = [entry[name] for name in ("key", "namespace", "user_key") if name in entry]
    return found[0] if len(found) == 1 else found


_STATUS: Final = {Outcome.RESTORES: "restores", Outcome.LOSES: "loses"}


def comparison_page(place: Place, metadata: CheckpointMetadata, lock_name: str, comparison: Comparison) -> str:
    """Return the page of the compatibility of a lockfile with stored state."""
    rows = [[_shown(cell, MOST_CHARACTERS) for cell in row] for row in comparison.reports.rows()]
    rows += [[uid, "", "operator not in the lockfile", "", "", ""] for uid in comparison.dropped_operators]
    parts = [paragraph(f"A job of this lockfile {comparison.outcome.value}.")]
    if comparison.rejection is not None:
        parts.append(element("p", text(comparison.rejection), {"class": "alarm"}))
    parts.append(Table("By state", COMPATIBILITY_COLUMNS, rows).html())
    status = _STATUS.get(comparison.outcome, "rejected")
    facts = [
        ("lockfile", cut(lock_name, 80)),
        ("state", f"{place.name}, {metadata.kind.value.lower()} {metadata.checkpoint_id}"),
    ]
    body: list[Html | Section] = [
        _trail(_of_place(place), _of_checkpoint(place, metadata)),
        Section("Compatibility", parts),
    ]
    return document("Compatibility", kind="Lockfile", status=status, facts=facts, body=body)


def error_page(message: str) -> str:
    """Return the page of an error."""
    body = [_trail(), element("p", text(cut(message, MOST_OF_ONE)), {"class": "alarm"})]
    return document("This cannot be shown", kind="Error", facts=[], body=body)
