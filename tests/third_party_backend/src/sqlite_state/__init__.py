"""Keyed state in SQLite: a state backend as another distribution would bring it.

It uses nothing of `statebackend` but what docs/writing-a-backend.md and docs/backend-rules.md name.
"""

from sqlite_state.state_store import SqliteStateBackend, SqliteStateStore

__all__ = ["SqliteStateBackend", "SqliteStateStore"]
