"""The output in docs/upgrading-a-job.md is that of the commands."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from examples.flights import version_1, version_2, version_3
from examples.flights.flights_source import Flight
from snapshots.compatibility import CompatibilityKind
from statebackend import KeyedProcessFunction, StateMigrationException
from statebackend.local import LocalJob, LocalStreamEnvironment
from typeserializers import AttrsSerializer, converted_by

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDE = DOCS / "upgrading-a-job.md"


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    run(version_1.FollowAircraft(), tmp_path / "old").savepoint(tmp_path / "savepoint")
    return tmp_path / "savepoint"


def run(function: KeyedProcessFunction[str, Any, Any], job_dir: Path, **options: Any) -> LocalJob:
    flight = Flight("N1", datetime(2013, 1, 1), "JFK", "BOS", "UA", 1, dep_time=1, arr_delay=7)
    environment = LocalStreamEnvironment(job_dir=job_dir)
    stream = environment.from_elements([flight])
    stream.key_by("tailnum").process(function, uid="aircraft").sink_to([])
    return environment.execute("flights", **options)


def test_the_compatibilities_of_the_guide_are_those_of_the_example(tmp_path: Path, savepoint: Path) -> None:
    job = run(version_2.FollowAircraft(), tmp_path / "new", from_savepoint=savepoint)
    compatibilities = "\n".join(str(compatibility) for compatibility in job.schema_reports["aircraft"].compatibilities)
    assert f"```\n{compatibilities}\n```" in GUIDE.read_text("utf-8")


@attrs.frozen
class Delay:
    minutes: int


def delay_as_text() -> type:
    class Delay:
        minutes: str = attrs.field(metadata=converted_by(str))

    return attrs.frozen(Delay)


def delay_in_hours() -> type:
    class Delay:
        __schema_version__ = 2
        __converters__: ClassVar[dict[int, Any]] = {1: lambda old: {"hours": old["minutes"] / 60}}
        hours: float

    return attrs.frozen(Delay)


@pytest.mark.parametrize(
    ("record_class", "rule"), [(delay_as_text(), "field-converted"), (delay_in_hours(), "record-converted")]
)
def test_the_converters_of_the_guide_convert_what_no_rule_covers(record_class: type, rule: str) -> None:
    assert rule.startswith("record") or f"`{rule}`" in (DOCS / "evolving-a-record.md").read_text("utf-8")
    stored = AttrsSerializer(Delay).snapshot_configuration()
    compatibility = stored.resolve_schema_compatibility(AttrsSerializer(record_class))
    assert compatibility.kind is CompatibilityKind.AFTER_MIGRATION
    assert rule in {issue.rule for issue in compatibility.issues}


def test_the_rejection_of_the_guide_is_that_of_the_example(tmp_path: Path, savepoint: Path) -> None:
    with pytest.raises(StateMigrationException) as rejected:
        run(version_3.FollowAircraft(), tmp_path / "new", from_savepoint=savepoint)
    assert f"```\n{rejected.value}\n```" in GUIDE.read_text("utf-8")
