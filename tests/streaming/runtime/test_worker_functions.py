"""Objects of setup(): once per process, run and operator, in every function of a task, until teardown()."""

from __future__ import annotations

import asyncio
import os
import pickle
from typing import Any, ClassVar

import pytest

from statebackend import KeyedProcessFunction, UserFunctionError
from statebackend.streaming.functions import user_functions_of
from statebackend.streaming.runtime.worker_functions import KEPT_JOBS, RunIdentity, WorkerFunctions
from statebackend.streaming.windows.assigners import TumblingEventTimeWindows
from statebackend.streaming.windows.triggers import EventTimeTrigger
from statebackend.streaming.windows.window_definition import ListedContents, WindowDefinition
from statebackend.streaming.windows.window_functions import ProcessWindowFunction

RUN = RunIdentity("job", "run-1")
LATER_RUN = RunIdentity("job", "run-2")


class Client:
    is_open = True

    def __reduce__(self) -> Any:
        raise TypeError("a client cannot be pickled")


class Looking(KeyedProcessFunction[Any, Any, Any]):
    """Has a client; `calls` records the calls in this process."""

    calls: ClassVar[list[str]] = []

    def __init__(self, name: str = "f", failing: str = "") -> None:
        self.name = name
        self.failing = failing

    def setup(self) -> None:
        self._call("setup")
        self.client = Client()

    def process_element(self, value: Any, context: Any) -> Any:
        return [value]

    def teardown(self) -> None:
        self.client.is_open = False
        self._call("teardown")

    def _call(self, method: str) -> None:
        self.calls.append(f"{method} {self.name}")
        if method == self.failing:
            raise OSError("no way")


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    fresh: list[str] = []
    monkeypatch.setattr(Looking, "calls", fresh)
    return fresh


def made(functions: WorkerFunctions, function: Any, run: RunIdentity = RUN, uid: str = "operator") -> Any:
    """The function of a task, unpickled as in a runtime."""
    pickled = pickle.dumps(function)
    return functions.function(run, uid, lambda: pickle.loads(pickled))


def test_setup_runs_once_and_its_objects_are_in_the_function_of_every_task(calls: list[str]) -> None:
    functions = WorkerFunctions()
    first, second = made(functions, Looking()), made(functions, Looking())
    assert calls == ["setup f"]
    assert first is not second
    assert first.client is second.client
    first.of_this_epoch = 1
    assert not hasattr(second, "of_this_epoch")
    assert not hasattr(made(functions, Looking()), "of_this_epoch")


def test_each_operator_has_its_own_setup(calls: list[str]) -> None:
    functions = WorkerFunctions()
    one, other = made(functions, Looking("a"), uid="a"), made(functions, Looking("b"), uid="b")
    assert (one.name, other.name) == ("a", "b")
    assert one.client is not other.client
    functions.close()
    assert calls == ["setup a", "setup b", "teardown b", "teardown a"]


def test_another_run_of_the_job_ends_the_former_one_and_another_job_does_not(calls: list[str]) -> None:
    functions = WorkerFunctions()
    other = made(functions, Looking("other"), RunIdentity("another job", "run-1"))
    first = made(functions, Looking())
    later = made(functions, Looking("later"), LATER_RUN)
    assert (other.client.is_open, first.client.is_open, later.client.is_open) == (True, False, True)
    assert calls == ["setup other", "setup f", "teardown f", "setup later"]


def test_a_process_keeps_the_functions_of_a_few_jobs() -> None:
    functions = WorkerFunctions()
    clients = [made(functions, Looking(), RunIdentity(f"job-{number}", "run")).client for number in range(KEPT_JOBS)]
    assert made(functions, Looking(), RunIdentity("job-0", "run")).client is clients[0]
    made(functions, Looking(), RunIdentity("one more", "run"))
    assert [client.is_open for client in clients] == [True, False, *[True] * (KEPT_JOBS - 2)]


def test_a_failed_setup_names_the_operator_and_is_retried(calls: list[str]) -> None:
    functions = WorkerFunctions()
    for _ in range(2):
        with pytest.raises(
            UserFunctionError, match=r"operator 'operator': setup raised OSError: no way \(test_worker_"
        ):
            made(functions, Looking(failing="setup"))
    assert calls == ["setup f", "setup f"]
    made(functions, Looking())
    functions.close()
    assert calls[2:] == ["setup f", "teardown f"]


def test_a_failed_teardown_is_logged_and_others_continue(calls: list[str], caplog: pytest.LogCaptureFixture) -> None:
    functions = WorkerFunctions()
    made(functions, Looking("a"), uid="a")
    made(functions, Looking("b", failing="teardown"), uid="b")
    functions.close()
    assert calls[2:] == ["teardown b", "teardown a"]
    assert "operator 'b': teardown raised OSError: no way" in caplog.text


class Plain(KeyedProcessFunction[Any, Any, Any]):
    def __init__(self) -> None:
        self.seen: list[int] = []

    def process_element(self, value: Any, context: Any) -> Any:
        return [value]


@pytest.mark.parametrize("function", [Plain(), 5])
def test_a_function_without_a_setup_is_a_new_one_in_every_task(function: Any) -> None:
    functions = WorkerFunctions()
    one = made(functions, function)
    if isinstance(one, Plain):
        one.seen.append(1)
        assert made(functions, function).seen == []
    assert made(functions, function) == function or isinstance(one, Plain)


class Slotted(Looking):
    __slots__ = ("__hidden", "extra")

    def setup(self) -> None:
        super().setup()
        self.extra = Client()
        self.__hidden = self.extra

    @property
    def hidden(self) -> Any:
        return self.__hidden


def test_slots_are_copied_too() -> None:
    functions = WorkerFunctions()
    one, other = made(functions, Slotted()), made(functions, Slotted())
    assert one.extra is other.extra is other.hidden


class WithoutItsClient(Looking):
    """Leaves unpicklable attributes out of pickles, as functions do that may be pickled after setup()."""

    def __getstate__(self) -> Any:
        return {"name": self.name, "failing": self.failing}


def test_attributes_left_out_of_pickles_are_present() -> None:
    functions = WorkerFunctions()
    assert made(functions, WithoutItsClient()).client is made(functions, WithoutItsClient()).client


class InTheLoop(Looking):
    async def setup(self) -> None:  # type: ignore[override]
        self.client = Client()
        self.loop = asyncio.get_running_loop()
        self._call("setup")

    async def teardown(self) -> None:  # type: ignore[override]
        assert asyncio.get_running_loop() is self.loop
        self._call("teardown")


def test_setup_and_teardown_may_be_coroutines_and_run_in_one_loop(calls: list[str]) -> None:
    functions = WorkerFunctions()
    made(functions, InTheLoop())
    functions.close()
    assert calls == ["setup f", "teardown f"]


class Around:
    """The settings of an operator with two functions."""

    def __init__(self, *functions: Any) -> None:
        self.functions = functions

    @property
    def user_functions(self) -> tuple[Any, ...]:
        return self.functions


def test_functions_inside_the_settings_of_an_operator_are_set_up(calls: list[str]) -> None:
    functions = WorkerFunctions()
    settings = Around(Looking("a"), Plain(), Looking("b"))
    one, other = made(functions, settings), made(functions, settings)
    assert calls == ["setup a", "setup b"]
    assert [a.client is b.client for a, b in zip(one.functions[::2], other.functions[::2], strict=True)] == [True, True]
    assert user_functions_of(one) == one.functions
    functions.close()
    assert calls[2:] == ["teardown b", "teardown a"]


class LookingAtWindows(ProcessWindowFunction[Any, Any, Any, Any]):
    def setup(self) -> None:
        self.client = Client()

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        return elements


@pytest.mark.parametrize(
    "definition",
    [
        WindowDefinition(
            assigner=TumblingEventTimeWindows.of(1000),
            trigger=EventTimeTrigger(),
            contents=ListedContents(),
            window_function=LookingAtWindows(),
        ),
    ],
)
def test_functions_of_every_kind_of_operator_are_set_up(definition: Any) -> None:
    functions = WorkerFunctions()
    [one], [other] = (user_functions_of(made(functions, definition)) for _ in range(2))
    assert one.client is other.client


def test_earlier_setups_are_torn_down_if_another_fails(calls: list[str]) -> None:
    functions = WorkerFunctions()
    with pytest.raises(UserFunctionError, match="setup raised"):
        made(functions, Around(Looking("a"), Looking("b", failing="setup")))
    functions.close()
    assert calls == ["setup a", "setup b", "teardown a"]


def test_a_forked_process_runs_its_own_setup(calls: list[str]) -> None:
    functions = WorkerFunctions()
    client = made(functions, Looking()).client
    reader, writer = os.pipe()
    process_id = os.fork()
    if process_id == 0:
        try:
            own = made(functions, Looking()).client
            os.write(writer, repr((own is client, client.is_open, calls)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as reported:
        assert reported.read() == "(False, True, ['setup f', 'setup f'])"
    os.waitpid(process_id, 0)
