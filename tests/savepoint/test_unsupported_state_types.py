"""Every reader rejects rows, files and paths that are not state of a job."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statebackend import (
    BroadcastStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    PriorityQueueDescriptor,
    ProcessContext,
    RuntimeContext,
    Savepoint,
    SplitListStateDescriptor,
    StateDescriptor,
    StateRestoreError,
    UserFunctionError,
    ValueStateDescriptor,
)
from statebackend.checkpoint.errors import CheckpointNotFoundError, SavepointError
from statebackend.cli.main import main
from statebackend.cli.streams import MISUSED
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint import lockfile as lock_files
from statebackend.savepoint.entry_schema import EntrySchema
from statebackend.savepoint.errors import ColumnValueError, PlanError, StateLockError
from statebackend.savepoint.inspection import difference_of_entries
from statebackend.savepoint.lockfile import locks_of_history
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.savepoint.rewrite.entry_codec import decoded, stored_keys
from statebackend.savepoint.savepoint import rows_of_key
from statebackend.savepoint.stored_entries import EntryReader
from statebackend.savepoint.tables import ColumnForms
from statebackend.state.canonical import CanonicalBatch
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.state.state_meta import KeyedStateMeta, StateMeta, meta_of_descriptor
from typeserializers import LongSerializer, MapSerializer, NullableSerializer, StringSerializer

LONG, TEXT = LongSerializer(), StringSerializer()
VALUE: Any = ValueStateDescriptor("things", int)
LIST: Any = ListStateDescriptor("things", int)
MAP: Any = MapStateDescriptor("things", str, int)
KEY, SEVEN, NONE = LONG.to_bytes(1), LONG.to_bytes(7), b""
VALUE_OF_MAP = NullableSerializer(LONG).to_bytes(7)


def described(descriptor: StateDescriptor) -> tuple[KeyedStateMeta, StateMeta]:
    state = meta_of_descriptor(descriptor, VOID_NAMESPACE_SERIALIZER)
    return KeyedStateMeta(LONG.snapshot_configuration(), 0, (state,)), state


def rows(*given: tuple[bytes, bytes | None, bytes | None]) -> list[CanonicalBatch]:
    """A batch of keys, user keys and values in key group 3."""
    keys, user_keys, values = (list(column) for column in zip(*given, strict=True))
    return [CanonicalBatch([3] * len(given), keys, [NONE] * len(given), user_keys, values)]


@pytest.mark.parametrize(
    ("descriptor", "row", "reported"),
    [
        (VALUE, (KEY, None, None), "it has a row that is a removal"),
        (LIST, (KEY, None, None), "it has a row that is a removal"),
        (MAP, (KEY, TEXT.to_bytes("a"), None), "it has a row that is a removal"),
        (MAP, (KEY, None, VALUE_OF_MAP), "an entry of a map has no key of its own"),
        (VALUE, (KEY[:-1], None, SEVEN), "an entry cannot be read"),
        (VALUE, (KEY, None, SEVEN[:-1]), "an entry cannot be read"),
        (LIST, (KEY, None, SEVEN), ""),
    ],
)
def test_a_row_that_is_not_an_entry_is_rejected_with_its_state_and_key_group(
    descriptor: Any, row: Any, reported: str
) -> None:
    meta, state = described(descriptor)
    with pytest.raises(StateRestoreError, match=f"'things'.*key group 3.*{reported}"):
        list(EntryReader(EntrySchema.of_rows(meta, state)).entries(rows(row)))


def test_an_unreadable_key_is_rejected_while_a_key_is_searched() -> None:
    meta, state = described(VALUE)
    timers = StateMeta.of_one_schema(
        "things",
        EntrySchema.of_timers("things", LONG).kind,
        VOID_NAMESPACE_SERIALIZER.snapshot_configuration(),
        {"element": EntrySchema.of_timers("things", LONG).serializers["element"].snapshot_configuration()},
    )
    assert [batch.values for batch in rows_of_key(rows((KEY, None, SEVEN)), meta, state, 1)] == [[SEVEN]]
    with pytest.raises(StateRestoreError, match=r"'things'.*key group 3"):
        list(rows_of_key(rows((KEY[:-1], None, SEVEN)), meta, timers, 1))


@pytest.mark.parametrize("column", ["value", "user_key", "key"])
def test_an_undecodable_column_is_rejected_with_its_state(column: str) -> None:
    schema = EntrySchema.of_descriptor(MAP, LONG)
    whole = {"key": KEY, "user_key": TEXT.to_bytes("a"), "value": VALUE_OF_MAP}
    good = pa.RecordBatch.from_pylist([whole])
    assert decoded(schema, good, column)
    damaged = pa.RecordBatch.from_pylist([{**whole, column: whole[column][:-1]}])
    with pytest.raises(StateRestoreError, match="state 'things': an entry cannot be read: "):
        decoded(schema, damaged, column)


def test_a_queue_without_timers_has_no_keys() -> None:
    queue = PriorityQueueDescriptor("things", int)
    schema = EntrySchema(queue.name, queue.kind, LONG, VOID_NAMESPACE_SERIALIZER, dict(queue.serializers))
    with pytest.raises(StateRestoreError, match="'things' is a queue of elements that are not timers, so their keys"):
        stored_keys(schema, pa.RecordBatch.from_pylist([{"key": SEVEN}]))


def test_a_map_with_the_key_none_has_no_cell_form() -> None:
    form = ColumnForms().of(MapSerializer(NullableSerializer(TEXT), LONG))
    assert form.array([{"a": 1}, None, {}]).to_pylist() == [[("a", 1)], None, []]
    with pytest.raises(ColumnValueError, match="a map with the key None does not fit a column of maps"):
        form.array([{"a": 1}, {None: 2}])


class Count(KeyedProcessFunction[Any, Any, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
        self.count.update(self.count.value() + 1)
        yield context.current_key, self.count.value()


def counted(stream: Any) -> Any:
    return stream.key_by("k").process(Count(), uid="count", schema="k string, n bigint")


def stored(place: Path, max_parallelism: int = 8) -> Savepoint:
    plan = Plan().add_operator("one", "bigint").add_state("one", VALUE, [(1, 7), (2, 8)])
    plan = plan.add_operator_state("one", SplitListStateDescriptor("parts", int), [1, 2, 3])
    plan = plan.add_operator_state("one", BroadcastStateDescriptor("rules", str, int), {"a": 1, "b": 2})
    SavepointWriter.new(place, max_parallelism=max_parallelism).write(plan)
    return Savepoint.open(place)


@pytest.mark.parametrize("name", ["parts", "rules"])
def test_a_failing_or_invalid_predicate_names_state_and_element(tmp_path: Path, name: str) -> None:
    old = stored(tmp_path / "old")

    def rewritten(predicate: Any) -> None:
        SavepointWriter.copy_of(old.uri, tmp_path / "new").write(Plan().keep_elements("one", name, predicate))

    with pytest.raises(
        PlanError, match=f"operator state '{name}', .*: a function of the plan failed with ZeroDivision"
    ):
        rewritten(lambda element: 1 // 0)
    for answer in (1, 0, None, "yes"):
        with pytest.raises(
            PlanError, match=f"operator state '{name}': a predicate returned .*, neither True nor False"
        ):
            rewritten(lambda element, answer=answer: answer)
    assert not (tmp_path / "new").exists()
    rewritten(lambda element: element in (1, "a"))
    assert [one.value for one in Savepoint.open(tmp_path / "new").read_operator_state("one", name)] == [1]


def test_entries_of_other_key_groups_are_not_compared_one_by_one(tmp_path: Path) -> None:
    old, new = stored(tmp_path / "old"), stored(tmp_path / "new", 16)
    with pytest.raises(SavepointError, match=r"cannot be compared: they have 8 and 16 key groups.*leave out --entries"):
        list(difference_of_entries(old, new))


def test_a_plan_is_a_python_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = stored(tmp_path / "old")
    (tmp_path / "plan.txt").write_text("plan = None")
    assert main(["rewrite", old.uri, str(tmp_path / "new"), "--plan", str(tmp_path / "plan.txt")]) == MISUSED
    assert "is not a Python file: its name must end in .py" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "new").exists()


def test_a_checkpoint_outside_of_its_job_directory_has_no_files(tmp_path: Path) -> None:
    env = LocalStreamEnvironment(job_dir=tmp_path / "job")
    counted(env.from_elements([("a", 1)], "k string, v bigint")).sink_to([])
    env.execute("job")
    [checkpoint] = (tmp_path / "job" / "checkpoints").iterdir()
    assert Savepoint.open(checkpoint).metadata.job_name == "job"
    for place in (tmp_path / checkpoint.name, tmp_path / "checkpoints" / checkpoint.name):
        shutil.copytree(checkpoint, place)
        with pytest.raises(SavepointError, match="is a checkpoint of job 'job' outside of its job directory"):
            Savepoint.open(place)


def test_a_job_without_a_completed_epoch_has_no_state_to_read(tmp_path: Path) -> None:
    env = LocalStreamEnvironment(job_dir=tmp_path / "job")

    def failing(row: Any) -> Any:
        raise ValueError("no such thing")

    counted(env.from_elements([("a", 1)], "k string, v bigint").flat_map(failing)).sink_to([])
    with pytest.raises(UserFunctionError, match="no such thing"):
        env.execute("job")
    with pytest.raises(
        CheckpointNotFoundError, match="has no completed checkpoint: the job has not completed its first ep"
    ):
        Savepoint.open(tmp_path / "job")


def test_a_history_beyond_the_limit_of_locks_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_files, "_MAX_LOCKS", 2)
    for number in range(1, 4):
        (tmp_path / f"{number:05d}-{'0' * 12}.lock").write_text("")
    with pytest.raises(StateLockError, match="has 3 lockfiles, and at most 2 are read"):
        list(locks_of_history(tmp_path))
