"""Each version of the job in this process, record by record, without Spark."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from examples.flights import version_1, version_2, version_3
from examples.flights.flights_source import Flight
from examples.flights.savepoint_contents import state_contents
from snapshots.compatibility import CompatibilityKind
from statebackend import StateMigrationException
from statebackend.local import LocalJob, LocalStreamEnvironment

NEW_YEAR = datetime(2013, 1, 1)


def flight(
    hour: int,
    dest: str,
    arr_delay: int | None,
    *,
    tailnum: str = "N1",
    carrier: str = "UA",
    dep_time: int | None = 100,
) -> Flight:
    return Flight(tailnum, NEW_YEAR + timedelta(hours=hour), "JFK", dest, carrier, hour, dep_time, arr_delay)


FIRST = [
    flight(1, "BOS", 10),
    flight(2, "ORD", -5, carrier="AA"),
    flight(3, "BOS", 10),
    flight(4, "LAX", None, tailnum="N2", dep_time=None),
]
SECOND = [
    flight(5, "BOS", 0),
    flight(6, "MIA", None, dep_time=None),
    flight(7, "MIA", 99, carrier="DL"),
    flight(8, "SFO", 1),
]


def run(program: Any, flights: list[Flight], job_dir: Path, **options: Any) -> tuple[LocalJob, list[Any]]:
    backend = options.pop("backend", "rocksdb")
    parallelism = options.pop("parallelism", 2)
    environment = LocalStreamEnvironment(job_dir=job_dir, backend=backend, parallelism=parallelism, epoch_size=2)
    rows: list[Any] = []
    (
        environment.from_elements(flights)
        .key_by("tailnum")
        .process(program.FollowAircraft(), uid=program.UID)
        .sink_to(rows)
    )
    return environment.execute("flights", **options), rows


def test_version_1_emits_a_row_per_flight_with_the_totals_so_far(tmp_path: Path) -> None:
    _, rows = run(version_1, FIRST, tmp_path / "job")
    assert {(row[1].hour, row[0], *row[5:]) for row in rows} == {
        (1, "N1", 1, 10, "BOS", 10),
        (2, "N1", 2, 10, "ORD", 10),
        (3, "N1", 3, 20, "BOS", 10),
        (4, "N2", 1, 0, None, None),
    }


@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_version_2_continues_the_state_of_version_1(tmp_path: Path, backend: str) -> None:
    old, _ = run(version_1, FIRST, tmp_path / "old")
    old.savepoint(tmp_path / "savepoint")
    new, rows = run(
        version_2, SECOND, tmp_path / "new", from_savepoint=tmp_path / "savepoint", backend=backend, parallelism=3
    )
    assert [row[5:] for row in sorted(rows, key=lambda row: row[1])] == [
        (4, 20, "BOS", 10, None, 0),
        (5, 20, "BOS", 10, None, 1),
        (6, 119, "MIA", 99, "DL", 1),
        (7, 120, "SFO", 99, "DL", 1),
    ]
    new.savepoint(tmp_path / "final")
    assert state_contents(tmp_path / "final", "aircraft", "aircraft") == {
        "N1": {
            "flights": 7,
            "cancelled": 1,
            "minutes_late": 120,
            "airport": "SFO",
            "worst": {"minutes": 99, "dest": "MIA", "carrier": "DL"},
        },
        "N2": {"flights": 1, "cancelled": 0, "minutes_late": 0, "airport": None, "worst": None},
    }
    assert state_contents(tmp_path / "final", "aircraft", "destinations") == {
        ("N1", "BOS"): {"flights": 3, "minutes": 20, "on_time": 1},
        ("N1", "ORD"): {"flights": 1, "minutes": 0, "on_time": 0},
        ("N1", "MIA"): {"flights": 1, "minutes": 99, "on_time": 0},
        ("N1", "SFO"): {"flights": 1, "minutes": 1, "on_time": 0},
    }
    legs = state_contents(tmp_path / "final", "aircraft", "legs")
    assert [leg["dest"] for leg in legs["N1"]] == ["ORD", "BOS", "BOS", "MIA", "SFO"]


def test_the_upgrade_to_version_2_changes_the_fields_that_its_docstring_lists(tmp_path: Path) -> None:
    old, _ = run(version_1, FIRST, tmp_path / "old")
    old.savepoint(tmp_path / "savepoint")
    new, _ = run(version_2, SECOND, tmp_path / "new", from_savepoint=tmp_path / "savepoint")
    compatibilities = {
        compatibility.state_name: compatibility for compatibility in new.schema_reports["aircraft"].compatibilities
    }
    assert {name: compatibility.kind for name, compatibility in compatibilities.items()} == {
        "aircraft": CompatibilityKind.AFTER_MIGRATION,
        "destinations": CompatibilityKind.AFTER_MIGRATION,
        "legs": CompatibilityKind.AS_IS,
    }
    assert {(issue.rule, issue.path) for issue in compatibilities["aircraft"].issues} == {
        ("field-renamed", ".airport"),
        ("field-added", ".cancelled"),
        ("field-widened", ".minutes_late"),
        ("field-removed", ".last_carrier"),
        ("field-widened", ".worst.minutes"),
        ("field-added", ".worst.carrier"),
    }
    assert {(issue.rule, issue.path) for issue in compatibilities["destinations"].issues} == {
        ("field-added", ".on_time")
    }


@pytest.mark.parametrize("stored", [version_1, version_2])
def test_version_3_is_rejected_with_state_and_field_named(tmp_path: Path, stored: Any) -> None:
    old, _ = run(stored, FIRST, tmp_path / "old")
    old.savepoint(tmp_path / "savepoint")
    with pytest.raises(StateMigrationException) as rejected:
        run(version_3, SECOND, tmp_path / "new", from_savepoint=tmp_path / "savepoint")
    message = str(rejected.value)
    assert "'aircraft'" in message
    assert ".worst.minutes" in message
    assert "'destinations'" in message
    assert ".diverted" in message
    assert "Give it a default" in message
