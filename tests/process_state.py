"""State shared by all tests of a process, which no test may leave changed.

A test that registers a name, sets a variable or imports its own module changes what later tests see. Which tests are
affected depends on the order of files in a process. `tests/conftest.py` compares the state before and after each
file, and fails a file that changed it. A test changes shared state through `monkeypatch`, or uses the fixture
`own_registrations`.
Any test may import modules of this repository and of installed packages, which may register names.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark.cloudpickle import cloudpickle

from snapshots import envelope, permitted_modules, type_serializer_snapshot

REPOSITORY = Path(__file__).resolve().parents[1]
LASTING = tuple(f"{directory}{os.sep}" for directory in (REPOSITORY, sys.prefix, sys.base_prefix))
"""Directories of modules that are the same for all tests."""

LOGGERS = ("snapshots", "typeserializers", "migration", "statebackend")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM)
CLASSES: tuple[dict[str, type], ...] = (envelope._class_by_name, type_serializer_snapshot._defined)
DECLARED: tuple[Any, ...] = (
    permitted_modules._allowed_modules,
    permitted_modules._declared_modules,
    permitted_modules._unavailable,
    cloudpickle._PICKLE_BY_VALUE_MODULES,
)

Things = Mapping[str, Any]

_for_all: dict[tuple[str, str], Any] = {}


def is_lasting(module: ModuleType | None) -> bool:
    """Whether a module was not written by a test, and does not run under the name of another module."""
    return (getattr(module, "__file__", None) or "").startswith(LASTING)


def _is_of_a_test(known: type) -> bool:
    """Whether a class belongs to a test: it is in a module written by a test, or in a function."""
    return "<locals>" in known.__qualname__ or not is_lasting(sys.modules.get(known.__module__))


def _of_tests(classes: Mapping[str, type]) -> Things:
    return {name: known for name, known in classes.items() if _is_of_a_test(known)}


def _modules_of_tests() -> dict[str, ModuleType]:
    with_file = [(name, module) for name, module in sys.modules.items() if getattr(module, "__file__", None)]
    return {name: module for name, module in with_file if not is_lasting(module)}


def _declared_modules() -> Things:
    """The registered modules, except the program's own names, which are sent with every task."""
    declared = permitted_modules._declared_modules.items()
    return {name: module for name, module in declared if not any(name in known for known in CLASSES)}


def _context_variables() -> Things:
    """Context variables that are set, except that of `decimal`, which is set when it is first read."""
    return {one.name: value for one, value in copy_context().items() if one.name != "decimal_context"}


def _lasting_handlers(logger: logging.Logger) -> tuple[int, ...]:
    """The handlers, except those that pytest adds during a test."""
    return tuple(id(one) for one in logger.handlers if type(one).__module__ != "_pytest.logging")


def _settings_of_loggers() -> Things:
    loggers = [logging.root, *map(logging.getLogger, LOGGERS)]
    settings = {one.name: (one.level, one.propagate, one.disabled, _lasting_handlers(one)) for one in loggers}
    return {**settings, "the highest level that none takes": logging.root.manager.disable}


def _settings_of_python() -> Things:
    return {
        "working directory": os.getcwd(),
        "sys.path": tuple(sys.path),
        "recursion limit": sys.getrecursionlimit(),
        "garbage collector": (gc.isenabled(), gc.get_threshold()),
        "tempfile.tempdir": tempfile.tempdir,
        "threading.excepthook": threading.excepthook,
        **{number.name: signal.getsignal(number) for number in SIGNALS},
    }


SHARED: Mapping[str, Callable[[], Things]] = {
    "setting": _settings_of_python,
    "environment variable": lambda: {name: os.environ[name] for name in os.environ if name != "PYTEST_CURRENT_TEST"},
    "context variable": _context_variables,
    "logger": _settings_of_loggers,
    "module": lambda: {name: id(module) for name, module in _modules_of_tests().items()},
    "name of a snapshot": lambda: _of_tests(envelope._class_by_name),
    "snapshot class": lambda: _of_tests(type_serializer_snapshot._defined),
    "allowed module": lambda: dict.fromkeys(permitted_modules._allowed_modules, "allowed"),
    "declared module": _declared_modules,
    "unavailable snapshot": lambda: dict(permitted_modules._unavailable),
    "module pickled by value": lambda: dict.fromkeys(cloudpickle._PICKLE_BY_VALUE_MODULES, "registered"),
}


def process_state() -> Mapping[str, Things]:
    """The state shared by all tests."""
    return {kind: look() for kind, look in SHARED.items()}


def _changes(before: Mapping[str, Things]) -> Iterator[tuple[str, str, Any, Any]]:
    for kind, things in process_state().items():
        for name in sorted({*before[kind], *things}):
            was, now = (of.get(name, "nothing") for of in (before[kind], things))
            if was != now:
                yield kind, name, was, now


def left_behind(before: Mapping[str, Things]) -> list[str]:
    """The differences, one line each."""
    changes = [one for one in _changes(before) if _for_all.get(one[:2]) != one[3]]
    return [f"{kind} {name}: was {was!r:.200}, is {now!r:.200}" for kind, name, was, now in changes]


@contextmanager
def for_all_tests() -> Iterator[None]:
    """Keep the changes made in this context for all following tests, whichever file needs them first."""
    before = process_state()
    yield
    _for_all.update({(kind, name): now for kind, name, _, now in _changes(before)})


@contextmanager
def own_registrations() -> Iterator[None]:
    """Revert registrations and remove imported modules of a test."""
    classes = [_of_tests(known) for known in CLASSES]
    named = set(envelope._name_by_class)
    declared = [registry.copy() for registry in DECLARED]
    modules = _modules_of_tests()
    try:
        yield
    finally:
        # Registrations of lasting modules stay, because these modules are not imported again.
        for known, before in zip(CLASSES, classes, strict=True):
            for name in _of_tests(known):
                del known[name]
            known.update(before)
        for one in [one for one in envelope._name_by_class if one not in named and _is_of_a_test(one)]:
            del envelope._name_by_class[one]
        for registry, content in zip(DECLARED, declared, strict=True):
            registry.clear()
            registry.update(content)
        for name in _modules_of_tests():
            del sys.modules[name]
        sys.modules.update(modules)
