"""Files of JSON lines as a source of the local runtime."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest

from statebackend import ColumnType, KeyedProcessFunction, ValueStateDescriptor
from statebackend.connectors import JsonLinesSource
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.errors import JobDefinitionError, StreamJobError

LINE = '{"card": "a", "amount": 12.34, "at": "2026-03-01T00:00:00.123+00:00"}\n'


class Device(NamedTuple):
    id: str


class Payment(NamedTuple):
    card: str
    amount: Annotated[Decimal, ColumnType("decimal(12,2)")]
    at: datetime
    device: Device | None = None


class Number(NamedTuple):
    card: str
    amount: Decimal
    number: int


class CountPayments(KeyedProcessFunction[str, Payment, Number]):
    number = ValueStateDescriptor("number", int, default=0)

    def process_element(self, value: Payment, context: Any) -> Any:
        self.number.update(self.number.value() + 1)
        yield Number(value.card, value.amount, self.number.value())


def numbers(directory: Path, job_dir: Path | None = None) -> list[tuple[Any, ...]]:
    env = LocalStreamEnvironment(job_dir=job_dir, epoch_size=2)
    payments = env.from_source(JsonLinesSource(directory, Payment), Payment, uid="payments").as_records(Payment)
    rows: list[Any] = []
    payments.key_by("card").process(CountPayments(), uid="count").sink_to(rows)
    env.execute()
    return [tuple(row) for row in rows]


def test_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text(3 * LINE.replace('"a"', '"second"'))
    (tmp_path / "a.jsonl").write_text(3 * LINE.replace('"a"', '"first"'))
    assert [card for card, *_ in numbers(tmp_path, tmp_path / "job")] == 3 * ["first"] + 3 * ["second"]
    (tmp_path / "0.jsonl").write_text(3 * LINE.replace('"a"', '"third"'))
    assert [card for card, *_ in numbers(tmp_path, tmp_path / "job")] == 3 * ["third"]


def test_fields_are_converted_to_the_columns_of_the_schema(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"device": {"id": "x", "os": "web"}, "other": 1, "at": "2026-03-01T01:00:00+01:00", "amount": "1.5", '
        '"card": "b"}'
    )
    read = JsonLinesSource(tmp_path, Payment).read("a.jsonl", 0, 10)
    assert read.records == [
        {
            "card": "b",
            "amount": Decimal("1.50"),
            "at": datetime(2026, 3, 1, tzinfo=timezone.utc),
            "device": {"id": "x"},
        }
    ]
    assert read.is_at_end


class Shift(NamedTuple):
    day: date


class Plan(NamedTuple):
    first: Shift
    others: list[Shift]


def test_dates_are_text_at_every_level(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"first": {"day": "2026-02-28"}, "others": [{"day": "0001-01-01"}, null]}\n{}\n')
    assert JsonLinesSource(tmp_path, Plan).read("a.jsonl", 0, 10).records == [
        {
            "first": {"day": date(2026, 2, 28)},
            "others": [{"day": date(1, 1, 1)}, None],
        },
        {"first": None, "others": None},
    ]
    (tmp_path / "a.jsonl").write_text('{"first": {"day": "2026-02-30"}}')
    with pytest.raises(StreamJobError, match=r"at byte 0 does not fit the schema: field 'first': .*2026-02-30"):
        JsonLinesSource(tmp_path, Plan).read("a.jsonl", 0, 10)


def test_a_value_of_another_type_is_named_by_its_field(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(LINE + LINE.replace('"a"', "7") + LINE)
    with pytest.raises(
        StreamJobError, match=rf"byte {len(LINE)} does not fit the schema: card is of type number, not string"
    ):
        JsonLinesSource(tmp_path, Payment).read("a.jsonl", 0, 10)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"day": "2026-02-30"}', "field 'day': Failed to parse string: '2026-02-30'"),
        ('{"at": "25:00"}', "field 'at': Failed to convert JSON to timestamp"),
        ('{"small": 300}', "field 'small': Failed to convert JSON to int8"),
        ('{"day": "2026-02-28"', "JSON parse error"),
    ],
)
def test_a_value_that_cannot_be_parsed_is_named_by_its_field(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n" + line)
    with pytest.raises(StreamJobError, match=f"at byte 3 does not fit the schema: {reason}"):
        JsonLinesSource(tmp_path, "id string, day date, at timestamp, small tinyint").read("a.jsonl", 0, 10)


def test_a_line_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes((LINE + LINE.replace('"a"', '"Zo\u00eb"')).encode("latin-1"))
    with pytest.raises(StreamJobError, match=rf"byte {len(LINE)} does not fit the schema: it is not UTF-8"):
        JsonLinesSource(tmp_path, Payment).read("a.jsonl", 0, 10)


def test_a_read_ends_after_the_most_records_and_continues_at_its_position(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(LINE + "\n" + LINE + LINE)
    source = JsonLinesSource(tmp_path, Payment)
    first = source.read("a.jsonl", 0, 3)
    assert (len(first.records), first.position, first.is_at_end) == (2, 2 * len(LINE) + 1, False)
    second = source.read("a.jsonl", first.position, 3)
    assert (len(second.records), second.is_at_end) == (1, True)


def test_an_empty_file_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    read = JsonLinesSource(tmp_path, Payment).read("a.jsonl", 0, 3)
    assert (read.records, read.position, read.is_at_end) == ([], 0, True)


def test_the_next_start_reads_new_files_only(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "b.jsonl").write_text(LINE * 3)
    assert [number for *_, number in numbers(files, tmp_path / "job")] == [1, 2, 3]
    (files / "a.jsonl").write_text(LINE * 2)
    assert [number for *_, number in numbers(files, tmp_path / "job")] == [4, 5]
    assert numbers(files, tmp_path / "job") == []


def test_another_file_of_the_same_name_is_not_read_from_an_old_position(tmp_path: Path) -> None:
    before, after, moved = (tmp_path / name for name in ("before", "after", "moved"))
    for directory in (before, after, moved):
        directory.mkdir()
        (directory / "a.jsonl").write_text(LINE.replace('"a"', '"b"') if directory == after else LINE)
    assert len(numbers(before, tmp_path / "job")) == 1
    with pytest.raises(StreamJobError, match=r"source 'payments': split 'a\.jsonl', which was read up to position"):
        numbers(after, tmp_path / "job")
    assert numbers(moved, tmp_path / "job") == []


def test_a_file_of_one_line_without_line_end_may_grow(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(LINE.rstrip())
    assert len(numbers(tmp_path, tmp_path / "job")) == 1
    (tmp_path / "a.jsonl").write_text(2 * LINE)
    assert [number for *_, number in numbers(tmp_path, tmp_path / "job")] == [2]


def test_the_first_line_of_a_file_that_was_not_read_may_be_corrected(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(2 * LINE)
    (tmp_path / "b.jsonl").write_text('{"card": 5}\n')
    with pytest.raises(StreamJobError, match=r"b\.jsonl: the line at byte 0 does not fit the schema: .*Correct"):
        numbers(tmp_path, tmp_path / "job")
    (tmp_path / "b.jsonl").write_text(LINE)
    assert [number for *_, number in numbers(tmp_path, tmp_path / "job")] == [3]


def test_a_line_that_does_not_fit_is_named_by_file_and_byte(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(LINE + '{"card": 5}\n')
    with pytest.raises(StreamJobError, match=rf"a\.jsonl: the line at byte {len(LINE)} does not fit the schema"):
        numbers(tmp_path)


def test_a_null_in_a_required_field_is_rejected_with_the_record(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(LINE.replace('"a"', "null"))
    with pytest.raises(StreamJobError, match="card"):
        numbers(tmp_path)


@pytest.mark.parametrize(
    "type_name", ["map<string, int>", "array<map<string, int>>", "interval day to second", "time(6)"]
)
def test_a_type_that_cannot_be_read_is_rejected_with_advice(tmp_path: Path, type_name: str) -> None:
    with pytest.raises(JobDefinitionError, match=r"a type that it cannot read: .*Declare a struct instead"):
        JsonLinesSource(tmp_path, f"key string, value struct<nested: {type_name}>")


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StreamJobError, match="none is not a directory"):
        numbers(tmp_path / "none")


def test_a_pattern_matches_file_names(tmp_path: Path) -> None:
    with pytest.raises(JobDefinitionError, match="pattern"):
        JsonLinesSource(tmp_path, Payment, pattern="*/a.jsonl")
