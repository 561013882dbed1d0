"""The suite `payments` runs at a small scale. Its job and plain Python have the same outputs."""

from __future__ import annotations

import argparse
import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from benchmarks.payments import suite
from benchmarks.payments.data import FILES, read_payments, write_payments
from benchmarks.payments.step import run_local, run_plain

pytestmark = pytest.mark.slow


@pytest.fixture
def payments(tmp_path: Path) -> list[dict[str, Any]]:
    write_payments(tmp_path, 1500)
    return [
        payment
        for file in read_payments(tmp_path)
        for payment in file
        if payment["card_id"] is not None and payment["at"] is not None
    ]


def ms(time: dt.datetime) -> int:
    return int(time.timestamp() * 1000)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_job_and_plain_python_have_the_same_outputs(backend: str, payments: list[dict[str, Any]]) -> None:
    _, ours = run_local(payments, backend, 15)
    _, plain = run_plain(payments, 15)
    assert sorted((*row[:2], ms(row[2]), *row[3:]) for row in ours["profiled"]) == sorted(plain["profiled"])
    assert sorted((row[0], ms(row[1]), ms(row[2]), *row[3:]) for row in ours["windows"]) == sorted(plain["windows"])
    assert sorted((row[0], ms(row[1]), row[2]) for row in ours["silent"]) == sorted(plain["silent"])
    assert sorted(map(tuple, ours["damaged"])) == sorted(plain["damaged"])
    assert sorted(row.payment_id for row in ours["late"]) == sorted(row["payment_id"] for row in plain["late"])
    assert all(plain[name] for name in ("profiled", "windows", "silent", "damaged", "late"))


def test_payments_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    written = []
    for name in ("first", "second"):
        directory = tmp_path / name
        directory.mkdir()
        write_payments(directory, 200)
        written.append([file.read_text() for file in sorted(directory.iterdir())])
    assert written[0] == written[1]
    assert len(written[0]) == FILES


@pytest.mark.extended
def test_suite_compares_with_plain_python_and_another_commit(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    suite.add_arguments(parser)
    root = str(Path(suite.__file__).parents[2])
    given = ["--payments", "120", "--rounds", "1", "--only", "heap", "--before", root]
    results = list(suite.run(parser.parse_args(given)))
    assert [(result.name, result.peer_name, result.aim) for result in results] == [
        ("payments, heap", suite.PLAIN, None),
        ("payments, heap", suite.BEFORE, 5.0),
        ("payments from files, heap", suite.PLAIN, 0.35),
    ]
    assert all(result.ours and result.peer for result in results)
    profile = capsys.readouterr().err
    parts = ("rows in", "keys", "state read", "state write", "codecs", "timers", "windows", "rows out")
    assert all(f"  {part} " in profile for part in parts)
