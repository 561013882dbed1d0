"""The guide to jobs: what it shows as a whole program runs, and does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "writing-a-job.md"
TIMERS = re.compile(r"<!-- tests/streaming/api/test_guide.py runs this too -->\n```python\n(.*?)```", re.DOTALL)
PROGRAM = re.compile(r"<!-- tests/streaming/api/test_guide.py runs this -->\n```python\n(.*?)```", re.DOTALL)

RECORDS = re.compile(r"<!-- tests/streaming/api/test_guide.py runs the records -->\n```python\n(.*?)```", re.DOTALL)
STREAMS = re.compile(r"<!-- tests/streaming/api/test_guide.py runs this as well -->\n```python\n(.*?)```", re.DOTALL)


def test_the_job_of_several_sources_sinks_and_side_outputs_does_what_it_says() -> None:
    [program] = PROGRAM.findall(GUIDE.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    exec(program, names)
    assert len(names["totals"]) == len(names["damaged"]) == 2


def test_the_job_with_timers_does_what_it_says() -> None:
    [program] = TIMERS.findall(GUIDE.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    exec(program, names)
    assert len(names["silent"]) == 1


def test_the_job_of_streams_that_meet_does_what_it_says() -> None:
    [program] = STREAMS.findall(GUIDE.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    exec(program, names)
    assert len(names["settled"]) == 2


def test_the_job_of_record_classes_does_what_it_says() -> None:
    [program] = RECORDS.findall(GUIDE.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    # As in a program, hints are classes and no texts.
    exec(compile(program, "guide", "exec", dont_inherit=True), names)
    assert [row.payments for row in names["alerts"]] == [1, 2]
