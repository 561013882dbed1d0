"""The faults of chaos, without the processes that they hit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.demonstration.comparison import DifferenceError
from statebackend import KeyedProcessFunction, ProcessContext, RuntimeContext, ValueStateDescriptor
from statebackend.local import LocalStreamEnvironment
from verification.chaos.report import recovery_table
from verification.chaos.rounds import Recovery, require_no_leftovers
from verification.chaos.strikes import Target, strikes


class Counting(KeyedProcessFunction[str, Any, str]):
    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[str]:
        self.count.update((self.count.value() or 0) + 1)
        return iter(())


def test_a_seed_repeats_its_faults_for_any_number() -> None:
    assert list(strikes(7, 50))[:10] == list(strikes(7, 10)) != list(strikes(8, 10))
    assert {one.target for one in strikes(7, 200)} == set(Target)
    assert all(one.world in one.target.worlds for one in strikes(7, 200))


def test_only_the_requested_kinds_of_faults_occur() -> None:
    kinds = [Target.EXECUTOR, Target.STORE_BUSY]
    assert {one.target for one in strikes(7, 50, kinds)} == set(kinds)


def test_the_table_has_each_target_and_the_sum() -> None:
    [first, second, third] = strikes(1, 3)
    recoveries = [
        Recovery(first, Target.JVM, 3.0),
        Recovery(second, Target.JVM, 9.0),
        Recovery(third, Target.PAUSE, 4.0),
    ]
    lines = recovery_table(recoveries)
    assert [line.split()[-7:] for line in lines[1:]] == [
        ["2", "3.0", "3.0", "3.0", "9.0", "9.0", "9.0"],
        ["1", "4.0", "4.0", "4.0", "4.0", "4.0", "4.0"],
        ["3", "3.0", "3.0", "4.0", "9.0", "9.0", "9.0"],
    ]


def test_an_unreferenced_file_is_found(tmp_path: Path) -> None:
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job")
    counted = (
        environment.from_elements([{"k": "a"}], "k string")
        .key_by("k")
        .process(Counting(), uid="counts", schema="k string")
    )
    counted.sink_to([].append)
    environment.execute("job")
    require_no_leftovers(str(tmp_path / "job"))
    (tmp_path / "job" / "shared" / "stray").write_bytes(b"left over")
    with pytest.raises(DifferenceError, match="1 files belong to no checkpoint, for example shared/stray"):
        require_no_leftovers(str(tmp_path / "job"))
