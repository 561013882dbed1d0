"""Keyed state in SQLite: an example of a state backend in another distribution.

It uses only the parts of `statebackend` that docs/writing-a-backend.md and docs/backend-rules.md name.
"""

from sqlite_state.state_store import SqliteStateBackend, SqliteStateStore

__all__ = ["SqliteStateBackend", "SqliteStateStore"]
