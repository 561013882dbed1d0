"""Names and values with control and bidirectional characters: on terminals, in `repr`, and in logs."""

from __future__ import annotations

import enum
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from statebackend import (
    BroadcastStateDescriptor,
    KeyedProcessFunction,
    MapStateDescriptor,
    ProcessContext,
    Savepoint,
    SplitListStateDescriptor,
    UserFunctionError,
    ValueStateDescriptor,
)
from statebackend.cli.main import main
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.state import descriptors, operator_state_descriptors
from statebackend.state.errors import StateRegistrationError

HOSTILE = "a\x9b2J\u202eb\nFORGED\x1b[31m\u2028\U000e0041"
UID = "shop\u202e\u2066s"
Colour = enum.Enum("Colour", [HOSTILE, "GREEN"])  # type: ignore[misc]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A savepoint whose writer did not check names."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (descriptors, operator_state_descriptors):
            patch.setattr(module, "character_problem", lambda name: None)
        yield written(tmp_path_factory.mktemp("state") / "savepoint")


def written(path: Path) -> str:
    texts = MapStateDescriptor(HOSTILE, str, str)
    plan = (
        Plan()
        .add_operator(UID, "string")
        .add_state(UID, ValueStateDescriptor("colour", Colour), [(HOSTILE, Colour[HOSTILE])])
        .add_state(UID, texts, [(HOSTILE, HOSTILE, HOSTILE)])
    )
    SavepointWriter.new(path, max_parallelism=4).write(plan)
    return str(path)


def commands(place: str, directory: Path) -> Iterator[list[str]]:
    other = str(directory / "other")
    SavepointWriter.copy_of(place, other).write(Plan().remove_state(UID, HOSTILE))
    yield ["inspect", place]
    yield ["schema", place]
    yield ["du", place, "--files"]
    yield ["diff", place, other, "--entries"]
    yield ["show", place, UID, HOSTILE]
    yield ["show", place, UID, "colour"]
    yield ["show", place, UID, "no such state"]
    yield ["show", place, "no such operator", "colour"]
    yield ["show", place, UID, HOSTILE, "--where", f"{HOSTILE}=1"]
    yield ["show", place, UID, HOSTILE, "--key", "x" + HOSTILE]


@pytest.mark.parametrize("name", ["a\nb", "a\x9b2J", "\x7f", "a\u2028", "a\u202eb", "\u2066a", "a\u200f", "\u061ca"])
@pytest.mark.parametrize(
    "declare",
    [
        lambda name: ValueStateDescriptor(name, int),
        lambda name: MapStateDescriptor(name, str, int),
        lambda name: SplitListStateDescriptor(name, int),
        lambda name: BroadcastStateDescriptor(name, str, int),
    ],
)
def test_a_state_name_with_a_control_character_is_rejected_when_declared(
    declare: Callable[[str], Any], name: str
) -> None:
    with pytest.raises(StateRegistrationError, match=r"character U\+[0-9A-F]{4}; remove it") as rejected:
        declare(name)
    assert str(rejected.value).isprintable()
    assert declare("日本 \u200d é").name == "日本 \u200d é"


def test_no_command_prints_terminal_control_characters(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in commands(place, tmp_path):
        for options in ([], ["--json"]):
            main([*command, *options])
            captured = capsys.readouterr()
            for line in (captured.out + captured.err).split("\n"):
                assert line.replace("\t", "").isprintable(), (command, line)
            assert "\nFORGED" not in captured.out + captured.err


def test_json_has_the_same_data(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", place, UID, HOSTILE, "--json"]) == 0
    [entry] = json.loads(capsys.readouterr().out)
    assert (entry["key"], entry["user_key"], entry["value"]) == (HOSTILE, HOSTILE, HOSTILE)


def test_the_repr_of_what_is_stored_is_printable(place: str) -> None:
    savepoint = Savepoint.open(place)
    operator = savepoint.operators[UID]
    [colour] = savepoint.read(UID, "colour")
    shown: list[Any] = [savepoint, operator, savepoint.read(UID, HOSTILE), colour, colour.value]
    shown += [savepoint.schema(UID, "colour"), savepoint.metadata, f"{colour.value}"]
    for one in shown[:-1]:
        assert repr(one).isprintable()
        assert str(one).isprintable()
    assert shown[-1].isprintable()
    assert colour.value.name == HOSTILE


class FailsAtItsEnd(KeyedProcessFunction[str, Any, Any]):
    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        return iter(())

    def teardown(self) -> None:
        raise ValueError(f"{HOSTILE}\n2026-01-01 00:00:00 INFO forged")


def test_a_log_record_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    environment = LocalStreamEnvironment()
    environment.from_elements([{"key": "a"}], schema="key string").key_by("key").process(
        FailsAtItsEnd(), uid="fails", schema="key string"
    ).sink_to(lambda records: None)
    with caplog.at_level(logging.INFO):
        environment.execute("job")
    messages = [record.getMessage() for record in caplog.records]
    assert any("forged" in message for message in messages)
    assert all(message.isprintable() for message in messages)


class Fails(KeyedProcessFunction[str, Any, Any]):
    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        raise ValueError(HOSTILE)


def test_the_error_of_a_function_that_shows_its_record_is_one_line() -> None:
    environment = LocalStreamEnvironment()
    environment.from_elements([{"key": HOSTILE}], schema="key string").key_by("key").process(
        Fails(), uid="fails", schema="key string"
    ).sink_to([])
    with pytest.raises(UserFunctionError, match="FORGED") as caught:
        environment.execute("job")
    assert str(caught.value).isprintable()


def test_no_line_of_an_error_looks_like_another_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "savepoint\nerror: forged")
    assert main(["inspect", missing]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error: ")
    assert not any(line.startswith("error:") for line in lines[1:])
