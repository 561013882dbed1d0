"""The pytest fixture ``statebackend_lock`` and the option ``--statebackend-lock-update``.

pytest loads this file in every run where the package is installed. It imports only pytest until a test uses the
fixture.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import pytest

__all__ = ["StateLockFixture", "pytest_addoption", "statebackend_lock"]

_UPDATE = "--statebackend-lock-update"


class StateLockFixture(Protocol):
    """The type of the fixture ``statebackend_lock``."""

    def __call__(
        self,
        job: Any,
        path: str | os.PathLike[str] = "state.lock",
        *,
        history: str | os.PathLike[str] | None = None,
        allow_loss: bool = False,
    ) -> None:
        """Fail the test if the job cannot restore the state in its schema lockfile, or if the file is outdated.

        With ``--statebackend-lock-update`` the lockfile is written instead, and added to the history.

        Args:
            job: An environment, a function without arguments that returns one, or ``"module:factory"``.
            path: The schema lockfile, relative to pytest's root directory.
            history: A directory with all earlier lockfiles. The job must restore from each of them.
            allow_loss: Accept changes that lose data.
        """


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that accepts changes."""
    parser.getgroup("statebackend").addoption(
        _UPDATE, action="store_true", help="write the schema lockfiles of the tested jobs instead of comparing them"
    )


@pytest.fixture
def statebackend_lock(request: pytest.FixtureRequest) -> StateLockFixture:
    """Compare a job with its schema lockfile. See `StateLockFixture` for the arguments."""
    from statebackend.testing.lock_check import LockCheck

    accept = f"pytest {_UPDATE} '{request.node.nodeid}'"
    root, is_updated = Path(request.config.rootpath), bool(request.config.getoption(_UPDATE))

    def compare(
        job: Any,
        path: str | os.PathLike[str] = "state.lock",
        *,
        history: str | os.PathLike[str] | None = None,
        allow_loss: bool = False,
    ) -> None:
        check = LockCheck(job, root / path, None if history is None else root / history, allow_loss)
        failure = check.update() if is_updated else check.failure(accept)
        if failure is not None:
            pytest.fail(failure, pytrace=False)

    return compare
