"""Complete jobs with async I/O in the local runtime."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from statebackend import (
    AsyncContext,
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    AsyncTimeoutError,
    JobDefinitionError,
    KeyedProcessFunction,
    ProcessWindowFunction,
    TumblingEventTimeWindows,
    UserFunctionError,
    WatermarkStrategy,
)
from statebackend.connectors import JsonLinesSource
from statebackend.local import LocalJob, LocalStreamEnvironment

pytestmark = pytest.mark.slow

LONG = "10 minutes"
RECORDS = [("abcd"[number % 4], number) for number in range(23)]
SCHEMA = "key string, number int"
Wait = Callable[..., Any]
BOTH = pytest.mark.parametrize("wait", [AsyncDataStream.ordered_wait, AsyncDataStream.unordered_wait])


class Doubling(AsyncFunction[Any, Any]):
    """Returns the key and twice the number. Larger numbers complete earlier."""

    async def setup(self) -> None:
        self.lock = asyncio.Lock()

    async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        async with self.lock:
            pass
        for _ in range(40 - value.number):
            await asyncio.sleep(0)
        return [(value.key, value.number * 2)]


class Adding(KeyedProcessFunction[str, Any, Any]):
    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        yield value.key, value.number + 1


def run(
    wait: Wait,
    function: AsyncFunction[Any, Any],
    records: list[Any] = RECORDS,
    job_dir: Path | None = None,
    timeout: Any = LONG,
    input_schema: str = SCHEMA,
    is_keyed: bool = True,
    parallelism: int = 2,
    **options: Any,
) -> list[Any]:
    results: list[Any] = []
    environment = LocalStreamEnvironment(epoch_size=7, parallelism=parallelism, job_dir=job_dir)
    records_of: Any = environment.from_elements(records, schema=input_schema)
    stream = records_of.key_by("key") if is_keyed else records_of
    asked = wait(stream, function, timeout, uid="ask", schema="key string, number bigint", **options)
    asked.key_by("key").process(Adding(), uid="add", schema="key string, number bigint").sink_to(results)
    environment.execute("job")
    return results


@BOTH
@pytest.mark.parametrize("capacity", [1, 3, 100])
def test_every_record_is_emitted_once_and_in_order_if_configured(wait: Wait, capacity: int) -> None:
    results = run(wait, Doubling(), capacity=capacity)
    assert sorted(results) == sorted((key, number * 2 + 1) for key, number in RECORDS)
    if wait is AsyncDataStream.ordered_wait:
        for key in "abcd":
            numbers = [number for one, number in results if one == key]
            assert numbers == sorted(numbers)


class Never(AsyncFunction[Any, Any]):
    """Never completes for number 3. Fails for number 4 while ``failures`` is positive."""

    failures: ClassVar[int] = 0

    async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        if value.number == 3:
            await asyncio.Event().wait()
        if value.number == 4 and context.attempt <= self.failures:
            raise ConnectionError("nobody is there")
        yield value.key, value.number


@BOTH
def test_a_function_that_never_completes_fails_the_epoch_with_operator_key_and_record(wait: Wait) -> None:
    # On a busy machine another record may time out first.
    late = r"operator 'ask', key '(\w)', record Row\(key='\1', number=\d+\): no results within 20 ms"
    with pytest.raises(AsyncTimeoutError, match=late):
        run(wait, Never(), timeout=20)


@BOTH
def test_an_exception_of_a_function_fails_the_epoch_with_operator_key_and_record(
    wait: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Never, "failures", 2)
    records = [record for record in RECORDS if record[1] != 3]
    message = r"operator 'ask', key 'a', record Row\(key='a', number=4\): async_invoke raised ConnectionError: nobody"
    with pytest.raises(UserFunctionError, match=message):
        run(wait, Never(), records)
    with pytest.raises(UserFunctionError, match=message):
        run(wait, Never(), records, retry=AsyncRetryStrategy.fixed_delay(2, 0))
    results = run(wait, Never(), records, retry=AsyncRetryStrategy.fixed_delay(3, 0))
    assert sorted(results) == sorted((key, number + 1) for key, number in records)


@BOTH
def test_records_in_flight_are_restored_after_checkpoints_and_restarts(wait: Wait, tmp_path: Path) -> None:
    first = run(wait, Doubling(), RECORDS[:20], job_dir=tmp_path, carry_in_flight=True)
    # The two outputs are compared as a whole: any number of records may still be in flight after the first run.
    second = run(wait, Doubling(), RECORDS[20:], job_dir=tmp_path)
    expected = sorted((key, number * 2 + 1) for key, number in RECORDS)
    assert sorted([*first, *second]) == expected


@BOTH
def test_capacity_can_be_the_positional_argument_of_flink(wait: Wait) -> None:
    results: list[Any] = []
    environment = LocalStreamEnvironment()
    records: Any = environment.from_elements(RECORDS, schema=SCHEMA)
    wait(records, Doubling(), LONG, 3, uid="ask", schema=SCHEMA).sink_to(results)
    environment.execute("job")
    assert sorted(results) == sorted((key, number * 2) for key, number in RECORDS)
    with pytest.raises(JobDefinitionError, match=r"capacity of \w+_wait\(\) is 0"):
        wait(records, Doubling(), LONG, 0, uid="other", schema=SCHEMA)


@BOTH
def test_a_drained_job_restores_nothing_in_flight_even_without_event_time(wait: Wait) -> None:
    results: list[Any] = []
    environment = LocalStreamEnvironment()
    records: Any = environment.from_elements(RECORDS, schema=SCHEMA)
    wait(records, Slow(), LONG, uid="ask", schema=SCHEMA, carry_in_flight=True).sink_to(results)
    environment.execute("job", drain=True)
    assert sorted(results) == sorted(RECORDS)


@BOTH
def test_a_run_without_job_directory_awaits_requests_that_a_checkpoint_carries(wait: Wait) -> None:
    class AfterACheckpoint(AsyncFunction[Any, Any]):
        """Completes requests only when a checkpoint is complete."""

        async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
            while not list(Path(environment.job_dir).rglob("_metadata")):
                await asyncio.sleep(0)
            return [(value.key, value.number)]

    results: list[Any] = []
    environment = LocalStreamEnvironment()
    records: Any = environment.from_elements(RECORDS, schema=SCHEMA)
    wait(records, AfterACheckpoint(), LONG, uid="ask", schema=SCHEMA, carry_in_flight=True).sink_to(results)
    environment.execute("job")
    assert sorted(results) == sorted(RECORDS)


@BOTH
def test_restored_requests_are_sent_although_no_record_comes(wait: Wait, tmp_path: Path) -> None:
    class OnceAtARestart(AsyncFunction[Any, Any]):
        """Completes requests only of a run that starts from a checkpoint."""

        async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
            while not is_restart:
                await asyncio.sleep(0)
            return [(value.key, value.number)]

    is_restart = False

    def continued(
        job_dir: Path | None, records: list[Any], savepoint: Path | None = None
    ) -> tuple[LocalJob, list[Any]]:
        results: list[Any] = []
        environment = LocalStreamEnvironment(parallelism=2, job_dir=job_dir)
        source: Any = environment.from_elements(records, schema=SCHEMA)
        stream = wait(source, OnceAtARestart(), LONG, uid="ask", schema=SCHEMA, carry_in_flight=True)
        stream.sink_to(results)
        return environment.execute("job", from_savepoint=savepoint), results

    first, results = continued(tmp_path / "job", RECORDS)
    first.savepoint(tmp_path / "savepoint")
    assert results == []
    is_restart = True
    assert sorted(continued(None, [], tmp_path / "savepoint")[1]) == sorted(RECORDS)
    assert sorted(continued(tmp_path / "job", [])[1]) == sorted(RECORDS)
    assert continued(tmp_path / "job", [])[1] == []


class Slow(AsyncFunction[Any, Any]):
    """Completes after all other records had many turns of the event loop."""

    async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        for _ in range(2000):
            await asyncio.sleep(0)
        return [(value.key, value.number)]


class Waiting(AsyncFunction[Any, Any]):
    """Completes no record in the first run."""

    answers: ClassVar[bool] = False

    async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        if not self.answers:
            await asyncio.Event().wait()
        return [(value.key, value.number)]


@BOTH
def test_unanswered_requests_are_sent_again_after_a_restart(
    wait: Wait, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = RECORDS[:12]
    assert run(wait, Waiting(), records, job_dir=tmp_path, carry_in_flight=True) == []
    monkeypatch.setattr(Waiting, "answers", True)
    results = run(wait, Waiting(), [("z", 100)], job_dir=tmp_path)
    assert sorted(results) == sorted((key, number + 1) for key, number in [*records, ("z", 100)])


@BOTH
@pytest.mark.parametrize(
    ("restore_source_progress", "times"), [(True, 1), (False, 2), ({"one": False}, None), ({"one": True}, 1)], ids=str
)
def test_records_in_flight_of_a_savepoint_are_restored_wherever_the_sources_start(
    wait: Wait, restore_source_progress: Any, times: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are state, and not positions of sources. What a source reads again comes in addition."""
    records = {"one": [("a", 1), ("b", 2)], "two": [("a", 3), ("c", 4)]}
    for uid, rows in records.items():
        (tmp_path / uid).mkdir()
        (tmp_path / uid / "0.jsonl").write_text("".join(json.dumps({"key": k, "number": n}) + "\n" for k, n in rows))

    def start(job: str, results: list[Any], **options: Any) -> LocalJob:
        environment = LocalStreamEnvironment(parallelism=2, job_dir=tmp_path / job)
        sources = [environment.from_source(JsonLinesSource(tmp_path / uid, SCHEMA), SCHEMA, uid=uid) for uid in records]
        united: Any = sources[0].union(sources[1])
        wait(united, Waiting(), LONG, uid="ask", schema=SCHEMA, carry_in_flight=True).sink_to(results)
        return environment.execute("job", **options)

    nothing: list[Any] = []
    start("job", nothing).savepoint(tmp_path / "savepoint")
    monkeypatch.setattr(Waiting, "answers", True)
    results: list[Any] = []
    options = {"from_savepoint": tmp_path / "savepoint", "restore_source_progress": restore_source_progress}
    start("new", results, **options, drain=True)
    again = {"one": times or 2, "two": times or 1}
    assert nothing == []
    assert sorted(map(tuple, results)) == sorted(row for uid in records for row in records[uid] * again[uid])


def test_records_in_flight_survive_a_schema_change_of_the_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = AsyncDataStream.ordered_wait
    assert run(wait, Waiting(), [("a", 1)], job_dir=tmp_path, carry_in_flight=True) == []
    monkeypatch.setattr(Waiting, "answers", True)
    wider = "key string, comment string, number bigint"
    results = run(wait, Waiting(), [("z", "new", 1 << 40)], job_dir=tmp_path, input_schema=wider)
    assert sorted(results) == [("a", 2), ("z", (1 << 40) + 1)]


class Count(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: list[Any]) -> Iterator[Any]:
        yield key, len(elements)


@BOTH
@pytest.mark.parametrize("carry_in_flight", [False, True])
def test_window_output_is_not_late_after_a_slow_async_function(wait: Wait, carry_in_flight: bool) -> None:
    counted: list[Any] = []
    env = LocalStreamEnvironment(epoch_size=2)
    timed = env.from_elements([("a", 1), ("a", 25), ("a", 27), ("a", 35)], SCHEMA).assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamps("number")
    )
    schema = "key string, number bigint"
    first = timed.key_by("key").window(TumblingEventTimeWindows.of(10)).process(Count(), uid="first", schema=schema)
    asked = wait(first.key_by("key"), Doubling(), LONG, uid="ask", schema=schema, carry_in_flight=carry_in_flight)
    second = asked.key_by("key").window(TumblingEventTimeWindows.of(10)).process(Count(), uid="second", schema=schema)
    second.sink_to(counted)
    env.execute(drain=True)
    assert [tuple(row) for row in counted] == [("a", 1), ("a", 1), ("a", 1)]


def test_a_job_can_run_inside_a_running_event_loop() -> None:
    async def program() -> list[Any]:
        return run(AsyncDataStream.ordered_wait, Doubling(), RECORDS[:5])

    assert len(asyncio.run(program())) == 5


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"capacity": 0}, r"capacity of ordered_wait\(\) is 0"),
        ({"capacity": True}, r"capacity of ordered_wait\(\) is True"),
        ({"timeout": 0}, r"timeout of ordered_wait\(\) is 0"),
        ({"timeout": "soon"}, r"timeout of ordered_wait\(\) is 'soon'"),
        ({"retry": 3}, r"retry of ordered_wait\(\) is 3"),
        ({"function": Doubling}, r"an instance of an AsyncFunction, not the class Doubling; make an instance"),
        ({"function": Adding()}, r"takes an instance of an AsyncFunction, not"),
    ],
)
def test_other_functions_are_rejected(options: dict[str, Any], reported: str) -> None:
    with pytest.raises(JobDefinitionError, match=reported):
        run(AsyncDataStream.ordered_wait, **{"function": Doubling(), **options})


@BOTH
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_stream_without_keys_is_distributed_and_every_record_emitted_once(wait: Wait, parallelism: int) -> None:
    results = run(wait, Doubling(), is_keyed=False, parallelism=parallelism, capacity=3)
    expected = [(key, number * 2 + 1) for key, number in RECORDS]
    assert sorted(results) == sorted(expected)
    if parallelism == 1 and wait is AsyncDataStream.ordered_wait:
        assert results == expected


@BOTH
@pytest.mark.parametrize("is_keyed", [True, False])
def test_records_are_rescaled_each_once(
    wait: Wait, is_keyed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = RECORDS[:12]
    carried = run(wait, Waiting(), records, job_dir=tmp_path, carry_in_flight=True, is_keyed=is_keyed, parallelism=3)
    assert carried == []
    monkeypatch.setattr(Waiting, "answers", True)
    results = run(wait, Waiting(), [("z", 100)], job_dir=tmp_path, is_keyed=is_keyed, parallelism=2)
    assert sorted(results) == sorted((key, number + 1) for key, number in [*records, ("z", 100)])


def test_an_error_over_a_stream_without_keys_names_operator_and_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Never, "failures", 1)
    with pytest.raises(UserFunctionError, match=r"'ask', record Row\(key='a', number=4\): async_invoke raised"):
        run(AsyncDataStream.ordered_wait, Never(), [("a", 4)], is_keyed=False)


def test_other_inputs_are_rejected() -> None:
    stream: Any = [1]
    with pytest.raises(JobDefinitionError, match=r"ordered_wait\(\) takes a stream first, not \[1\]"):
        AsyncDataStream.ordered_wait(stream, Doubling(), 5, uid="ask", schema=SCHEMA)


def test_records_without_a_declared_schema_cannot_be_carried() -> None:
    environment = LocalStreamEnvironment()
    stream = environment.from_elements([{"key": "a", "number": 1}]).key_by("key")
    AsyncDataStream.ordered_wait(stream, Doubling(), 5, uid="ask", schema=SCHEMA, carry_in_flight=True).sink_to([])
    with pytest.raises(JobDefinitionError, match="operator 'ask': carry_in_flight puts records into checkpoints"):
        environment.execute("job")
