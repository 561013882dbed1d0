"""The lockfile of a job equals that of its savepoint, and is checked in the same way."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspected_job import SumPerShop, run_job

from snapshots.envelope import snapshot_to_bytes
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.lockfile import lock_from_bytes, lock_to_bytes
from statebackend.savepoint.state_location import find_state
from statebackend.state.state_meta import KeyedStateMeta
from statebackend.streaming.compatibility_check import CompatibilityChecker, DescribesJob


def environment() -> LocalStreamEnvironment:
    env = LocalStreamEnvironment()
    env.from_elements([], schema="shop string, amount bigint").key_by("shop").process(
        SumPerShop(), uid="per shop", schema="shop string"
    ).sink_to([])
    return env


def schemas(meta: KeyedStateMeta) -> dict[str, object]:
    """All serializer snapshots in the metadata, as bytes."""
    return {
        "": snapshot_to_bytes(meta.key_snapshot),
        **{
            state.name: (
                state.kind.name,
                snapshot_to_bytes(state.namespace_snapshot),
                {role: snapshot_to_bytes(one) for role, one in state.role_snapshots.items()},
            )
            for state in meta.states
        },
    }


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_the_lock_of_a_job_equals_that_of_its_savepoint_to_the_byte(tmp_path: Path, backend: str) -> None:
    run_job(backend).savepoint(tmp_path / "savepoint")
    stored = find_state(tmp_path / "savepoint")
    lock = lock_from_bytes(lock_to_bytes(environment().described().lock()), "state.lock")
    assert list(lock.operator_uids) == list(stored.operator_uids) == ["per shop"]
    [locked], [written] = lock.keyed_metas_of("per shop"), stored.keyed_metas_of("per shop")
    assert schemas(locked) == schemas(written)
    by_name = {one.name: one for one in stored.operator_state_metas_of("per shop")}
    for one in lock.operator_state_metas_of("per shop"):
        assert one.mode is by_name.pop(one.name).mode
    assert not by_name


def test_a_lock_and_a_savepoint_have_the_same_compatibility_result(tmp_path: Path) -> None:
    run_job("heap").savepoint(tmp_path / "savepoint")
    job = environment().described()
    of_lock = CompatibilityChecker(job, job.lock()).compare().reports
    of_savepoint = CompatibilityChecker(job, find_state(tmp_path / "savepoint")).compare().reports
    assert {uid: sorted(str(report).splitlines()) for uid, report in of_lock.items()} == {
        uid: sorted(str(report).splitlines()) for uid, report in of_savepoint.items()
    }


def test_environments_describe_their_jobs() -> None:
    assert isinstance(environment(), DescribesJob)
