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
    """What the fixture gives."""

    def __call__(
        self,
        job: Any,
        path: str | os.PathLike[str] = "state.lock",
        *,
        history: str | os.PathLike[str] | None = None,
        allow_loss: bool = False,
    ) -> None:
        """Fails the test if the job does not restore from the lock at ``path``, or the lock is not that of the job.

        ``job`` is an environment, a function without arguments that returns one, or ``"module:factory"``. Paths begin
        in pytest's root directory. With ``history`` the job has to restore from every lock there has been. What would
        be lost fails the test unless ``allow_loss``. With ``--statebackend-lock-update`` the lock is written instead,
        and added to the history.
        """


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that accepts changes."""
    parser.getgroup("statebackend").addoption(
        _UPDATE, action="store_true", help="write the locks of jobs' state as the programs are, instead of comparing"
    )


@pytest.fixture
def statebackend_lock(request: pytest.FixtureRequest) -> StateLockFixture:
    """Compares a job with the lock of its state, see `StateLockFixture`."""
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
