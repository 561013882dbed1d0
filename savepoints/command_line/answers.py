"""What the commands find, as plain data of dicts, lists, texts and numbers: the same for people and for programs.

Times are ISO 8601 in UTC beside the milliseconds they were stored as. Types are told as `type_descriptions` tells them.
"""

from __future__ import annotations

import datetime
from typing import Any

from attrs import asdict

from savepoints.reading.state_statistics import EntryStatistics
from savepoints.reading.type_descriptions import TypeDescription
from savepoints.savepoint import Savepoint, StateDescription, StoredOperator
from savepoints.writing.new_metadata import WRITTEN_ANEW_FROM

__all__ = ["Answer", "inspection", "schemas"]

Answer = dict[str, Any]


def inspection(savepoint: Savepoint, *, now_ms: int, counts: bool) -> Answer:
    """All that `inspect` tells; with ``counts`` the rows of all keyed state are read once."""
    metadata = savepoint.metadata
    positions, watermarks = metadata.source_positions, metadata.watermarks
    return {
        "uri": savepoint.uri,
        "kind": metadata.kind.value.lower(),
        "checkpoint_id": metadata.checkpoint_id,
        "job_name": metadata.job_name,
        "job_id": metadata.job_id,
        "taken_at": _time(metadata.timestamp_ms),
        "timestamp_ms": metadata.timestamp_ms,
        "age_s": max(0, now_ms - metadata.timestamp_ms) // 1000,
        "processing_time_ms": metadata.processing_time_ms,
        "max_parallelism": metadata.max_parallelism,
        "size_bytes": metadata.size_bytes,
        "files": len(metadata.files),
        "parent_checkpoint_id": metadata.parent_checkpoint_id,
        "restored_from": None if metadata.restored_from is None else asdict(metadata.restored_from),
        "written_anew_from": metadata.properties.get(WRITTEN_ANEW_FROM),
        "watermark_ms": None if watermarks is None else watermarks.watermark_ms,
        "timers_due": [asdict(one) for one in metadata.timers_due],
        "source": None
        if positions is None
        else {
            "batch_id": positions.batch_id,
            "sources": [one.uid or one.name for one in positions.sources or ()],
            "offsets": positions.offsets.decode("utf-8", "replace"),
        },
        "sinks": {name: metadata.sink_identities.get(name) for name in metadata.sink_committables}
        | dict(metadata.sink_identities),
        "operators": [_operator(savepoint, one, counts) for one in savepoint.operators.values()],
    }


def schemas(savepoint: Savepoint) -> Answer:
    """The types of all state, with keys and without, by operator."""
    return {
        uid: {
            "states": {name: _schema(schema) for name, schema in operator.states.items()},
            "operator_states": {
                name: _schema(operator.operator_state_schema(name)) for name in operator.operator_states
            },
        }
        for uid, operator in savepoint.operators.items()
    }


def _operator(savepoint: Savepoint, operator: StoredOperator, counts: bool) -> Answer:
    states = []
    for name, schema in operator.states.items():
        types = {role: one.name for role, one in schema.types.items()}
        answer: Answer = {"name": name, "kind": schema.kind, "types": types}
        if schema.unknown is not None:
            answer["unknown"] = schema.unknown
        if counts:
            answer |= _figures(savepoint.statistics(operator.uid, name))
        states.append(answer)
    return {
        "uid": operator.uid,
        "name": operator.name,
        "parallelism": operator.parallelism,
        "size_bytes": operator.size_bytes,
        "states": states,
        "operator_states": [
            {"name": name, "mode": meta.mode.value, "elements": meta.row_count}
            for name, meta in operator.operator_states.items()
        ],
    }


def _figures(statistics: EntryStatistics) -> Answer:
    return {
        "entries": statistics.entries,
        "entry_bytes": statistics.size_bytes,
        "key_groups": len(statistics.entries_by_key_group),
        "skew": round(statistics.skew, 2),
        "largest_entry_bytes": [one.size_bytes for one in statistics.largest],
    }


def _schema(schema: StateDescription) -> Answer:
    return {"kind": schema.kind, "types": {role: _type(one) for role, one in schema.types.items()}}


def _type(described: TypeDescription) -> Answer:
    records = {
        record.name: {
            **({"schema_version": record.schema_version} if record.schema_version else {}),
            **({"constants": list(record.constants)} if record.constants else {}),
            "fields": {
                part.name: {
                    "type": part.type_name,
                    **({"former_names": list(part.former_names)} if part.former_names else {}),
                    **({} if part.default is None else {"default": part.default}),
                }
                for part in record.fields
            },
        }
        for record in described.records
    }
    unknown = {} if described.unknown is None else {"unknown": described.unknown}
    return {"type": described.name, **({"records": records} if records else {}), **unknown}


def _time(timestamp_ms: int) -> str | None:
    """None for a time that no calendar has."""
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds")
