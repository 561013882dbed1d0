"""Loads a job from ``module:factory``.

The factory is an environment, or a function without arguments that returns one: a `LocalStreamEnvironment` whose
sources have schemas and no elements, or any object with a method `described`. The module is found as with
``python -m``: in the current directory, then among installed packages. Output of the program goes to stderr, because
stdout is for the answer. Every failure is reported in one line that says how to fix it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

from snapshots.errors import StateFormatError, format_value, one_line
from statebackend.state.errors import StateBackendError
from statebackend.streaming.compatibility_check import DescribedJob, DescribesJob
from statebackend.streaming.errors import StreamJobError, describe_exception

_CONTRACT = (
    "a factory is a function without arguments that builds the job and returns its environment, as "
    "LocalStreamEnvironment with from_elements([], schema=...)"
)


class JobLoadingError(StreamJobError):
    """The program returns no job. The message is one line that says how to fix it."""


def load_job(name: str) -> DescribedJob:
    """Return the job of ``module:factory``. Raises `JobLoadingError`."""
    module_name, colon, path = name.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise JobLoadingError(
            f"--job is {name!r}, which is not module:factory: name a module as `import` does, and a function in it, as "
            f"flights.job:build"
        )
    if module_name == "__main__":
        raise JobLoadingError(
            "--job: __main__ is this command, not the program: name the module as `import` does. A script "
            "app.py is the module app; put what it does as a script under if __name__ == '__main__'"
        )
    with _program_of_this_directory(), contextlib.redirect_stdout(sys.stderr):
        found = _attribute(_module(module_name, name), module_name, path)
        return described_job(found, f"--job {name}")


def described_job(given: Any, name: str) -> DescribedJob:
    """Return the job of an environment or a factory. ``name`` is used in errors. Raises `JobLoadingError`."""
    made = given
    if not _describes(given):
        if not callable(given):
            raise JobLoadingError(f"{name}: {format_value(given, 80)} is not a factory: {_CONTRACT}")
        made = _call(given, name)
        if not _describes(made):
            raise JobLoadingError(f"{name} returned {format_value(made, 80)}, which is not an environment: {_CONTRACT}")
    described: DescribedJob = _call(made.described, name)
    return described


def _describes(given: Any) -> bool:
    return isinstance(given, DescribesJob) and not isinstance(given, type)


def _call(function: Callable[[], Any], name: str) -> Any:
    """Call a function of the program, which may raise anything."""
    try:
        return function()
    except SystemExit as error:
        raise JobLoadingError(
            f"{name} ended the process (sys.exit({error.code!r})) and returned no job: {_CONTRACT}"
        ) from error
    except (StreamJobError, StateBackendError, StateFormatError) as error:
        raise JobLoadingError(f"{name}: {one_line(str(error))}") from error
    except Exception as error:
        raise JobLoadingError(f"{name} raised {describe_exception(error)}; {_CONTRACT}") from error


def _module(module_name: str, name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise JobLoadingError(
                f"--job {name}: there is no module {error.name!r} in {os.getcwd()}, and none is installed: run the "
                f"command in the directory of the program, or set PYTHONPATH"
            ) from error
        raise JobLoadingError(
            f"--job {name}: {module_name} imports {error.name!r}, which is not installed for this command; install "
            f"it, or run the command with the program's interpreter: python -m statebackend"
        ) from error
    except SystemExit as error:
        raise JobLoadingError(
            f"--job {name}: importing {module_name} ended the process (sys.exit({error.code!r})): put what the program "
            f"does as a script under if __name__ == '__main__'"
        ) from error
    except Exception as error:
        raise JobLoadingError(
            f"--job {name}: importing {module_name} raised {describe_exception(error)}; "
            f"it must be importable without arguments, a Spark session or data"
        ) from error


def _attribute(module: Any, module_name: str, path: str) -> Any:
    try:
        return reduce(getattr, path.split("."), module)
    except AttributeError:
        raise JobLoadingError(
            f"--job: the module {module_name} has no {path!r}: define a function of that name there; {_CONTRACT}"
        ) from None


@contextlib.contextmanager
def _program_of_this_directory() -> Iterator[None]:
    """Add the current directory to the module path, as ``python -m`` does. An installed script does not."""
    directory = os.getcwd()
    is_added = directory not in sys.path and "" not in sys.path
    if is_added:
        sys.path.insert(0, directory)
    try:
        yield
    finally:
        if is_added:
            sys.path.remove(directory)
