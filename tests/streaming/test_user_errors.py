"""Errors of user functions, and of records that cannot be processed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from snapshots.errors import format_value
from statebackend import (
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    StateRegistrationError,
    UserFunctionError,
    ValueStateDescriptor,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.spark.savepoints import python_cause
from statebackend.streaming.errors import describe_exception
from statebackend.streaming.rows.row_reader import RowReader, UnreadableRowError
from statebackend.streaming.rows.row_writer import RowMismatchError, RowWriter


class Misbehaving(KeyedProcessFunction[str, dict[str, Any], str]):
    """Raises in given methods, but never on the driver."""

    def __init__(self, **failures: Exception) -> None:
        self.failures = failures

    def open(self, context: RuntimeContext) -> None:
        self.is_driver = context.epoch_id < 0
        self._fail("open")

    def process_element(self, value: dict[str, Any], context: ProcessContext[str]) -> Iterator[str]:
        self._fail("process")
        yield context.current_key

    def close(self) -> None:
        self._fail("close")

    def _fail(self, method: str) -> None:
        if not self.is_driver and method in self.failures:
            raise self.failures[method]


def run(function: KeyedProcessFunction[Any, Any, Any], **record: Any) -> str:
    environment = LocalStreamEnvironment()
    environment.from_elements([{"key": "k", **record}]).key_by("key").process(
        function, uid="op", schema="key string"
    ).sink_to([])
    with pytest.raises(UserFunctionError) as failure:
        environment.execute()
    return str(failure.value)


def test_a_multi_line_exception_keeps_operator_key_record_type_and_line_in_one_line() -> None:
    message = run(Misbehaving(process=ValueError("2 problems:\n\n  KeyError: 'a'\n    at b")))
    assert message.startswith("operator 'op', key 'k', record {'key': 'k'}: process_element raised ValueError: ")
    assert "ValueError: 2 problems: | KeyError: 'a' | at b (test_user_errors.py, line" in message
    assert "\n" not in message
    worker = f"Traceback (most recent call last):\n  File x\nstreamjobs.errors.UserFunctionError: {message}\n"
    assert python_cause(Exception(f"Job aborted\n{worker}\n\tat org.apache.spark.Foo")).endswith(message)


def test_a_long_record_is_shortened_with_a_mark() -> None:
    message = run(Misbehaving(process=ValueError("no")), text="x" * 1000)
    assert "xxx... (1024 characters): process_element" in message
    assert format_value("x" * 8, 10) == "'xxxxxxxx'"
    assert format_value("x" * 9, 10) == "'xxxxxxxxx... (11 characters)"


def test_an_unprintable_value_or_exception_hides_nothing() -> None:
    class Unshowable(ValueError):
        def __repr__(self) -> str:
            raise RuntimeError

        __str__ = __repr__

    assert format_value(Unshowable(), 10) == "a Unshowable (which cannot be shown: RuntimeError)"
    assert describe_exception(Unshowable()) == "Unshowable: (its text cannot be shown: RuntimeError)"


def test_an_exception_without_text_is_reported_by_its_type() -> None:
    assert describe_exception(AssertionError()) == describe_exception(AssertionError("\n")) == "AssertionError"
    assert describe_exception(AssertionError("a\x1b")) == "AssertionError: a\\x1b"


@pytest.mark.parametrize("method", ["open", "close"])
def test_a_failure_outside_of_records_names_operator_and_method(method: str) -> None:
    assert f"operator 'op': {method} raised OSError: disk (test_user" in run(Misbehaving(**{method: OSError("disk")}))


@pytest.mark.parametrize("method", ["open", "process"])
def test_a_failed_close_after_a_failure_does_not_hide_it(method: str) -> None:
    message = run(Misbehaving(**{method: OSError("the real one"), "close": KeyError("a follower")}))
    assert "OSError: the real one" in message
    assert "; close() then failed too: operator 'op': close raised KeyError: 'a follower'" in message


def test_a_failed_close_does_not_hide_incompatible_state() -> None:
    class PutsTextForANumber(Misbehaving):
        def open(self, context: RuntimeContext) -> None:
            super().open(context)
            self.number = context.get_state(ValueStateDescriptor("number", int))

        def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[str]:
            self.number.update("text")  # type: ignore[arg-type]
            yield ""

    message = run(PutsTextForANumber(close=KeyError("a follower")))
    assert "operator 'op', key 'k'" in message
    assert "number" in message.partition("close() then")[0]


def test_an_invalid_default_names_operator_class_and_state() -> None:
    class WrongDefault(Misbehaving):
        def open(self, context: RuntimeContext) -> None:
            self.number = context.get_state(ValueStateDescriptor("number", int, default="none"))

    environment = LocalStreamEnvironment()
    environment.from_elements([{"key": "k"}]).key_by("key").process(
        WrongDefault(), uid="op", schema="key string"
    ).sink_to([])
    with pytest.raises(
        StateRegistrationError, match=r"operator 'op' \(WrongDefault\): state 'number': the default 'none' is not"
    ):
        environment.execute()


@pytest.mark.parametrize(
    ("unreadable", "reason"),
    [
        (pa.array([0, 3_000_000], pa.int32()).view(pa.date32()), "day"),
        (pa.array([0, 2**62]).view(pa.timestamp("us", "UTC")), "date"),
        (pa.array([b"ok", b"\xff"]).view(pa.string()), "utf-8"),
    ],
)
def test_a_value_without_python_type_names_column_and_record(unreadable: pa.Array, reason: str) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["fine", "bad"]), unreadable], names=["name", "odd"])
    reader = RowReader(batch.schema, "operator 'op'")
    with pytest.raises(UnreadableRowError, match=r"operator 'op': column 'odd' \(.*the record: name='bad'") as failure:
        reader.rows(batch)
    assert str(failure.value).count("\n") == 0
    assert len(reader.rows(batch.slice(0, 1))) == 1, reason


def test_rows_are_emitted_in_batches_of_bounded_size() -> None:
    writer = RowWriter(pa.schema([("text", pa.string())]), max_batch_bytes=10_000)
    rows = [("x" * 100,)] * 5000
    batches = list(writer.batches(rows))
    assert [row for batch in batches for row in batch.column(0).to_pylist()] == [row[0] for row in rows]
    # The first batch is not bounded, because the size of the rows is not known yet.
    assert all(batch.nbytes <= 10_000 for batch in batches[1:])
    assert all(batch.nbytes >= 8_000 for batch in batches[1:-1])
    # The first batch of larger rows reduces the length of later batches.
    list(writer.batches([("x" * 50_000,)] * 3))
    assert [batch.num_rows for batch in writer.batches([("x" * 50_000,)] * 3)] == [1, 1, 1]
    assert list(writer.batches([])) == []


def test_small_rows_are_soon_emitted_in_long_batches() -> None:
    writer = RowWriter(pa.schema([("number", pa.int64())]))
    sizes = [batch.num_rows for batch in writer.batches([(number,) for number in range(200_000)])]
    assert sizes[:4] == [1024, 4096, 16_384, 65_536]
    assert max(sizes) == 65_536
    assert sum(sizes) == 200_000


def test_more_rows_than_an_arrow_array_holds_are_emitted_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    array = pa.array

    def small_array(values: Any, *arguments: Any, **options: Any) -> Any:
        if sum(len(value) for value in values) <= 8:
            return array(values, *arguments, **options)
        if len(values) % 2:
            raise pa.ArrowCapacityError("array cannot contain more than 8 bytes")
        return pa.chunked_array([array(values, *arguments, **options)])

    monkeypatch.setattr(pa, "array", small_array)
    writer = RowWriter(pa.schema([("text", pa.string())]), "operator 'op'")
    batches = list(writer.batches([("abc",), ("def",), ("gh",), ("i",), ("jklmnopq",)]))
    assert [batch.column(0).to_pylist() for batch in batches] == [["abc", "def"], ["gh"], ["i"], ["jklmnopq"]]
    assert [batch.num_rows for batch in RowWriter(writer.schema).batches([("12345",), ("6789",)])] == [1, 1]
    for rejecting in (lambda: list(writer.batches([("123456789",)])), lambda: writer.batch([("12345",), ("6789",)])):
        with pytest.raises(RowMismatchError, match=r"operator 'op': column 'text' \(string\): .* larger than 2 GiB"):
            rejecting()
