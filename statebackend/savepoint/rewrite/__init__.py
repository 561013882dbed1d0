"""Rewrites savepoints with a plan, or creates one from data. Nothing is written unless the whole plan is valid."""

from statebackend.savepoint.entry_schema import EntrySchema
from statebackend.savepoint.rewrite.absence import Remainder, remains, require_absent
from statebackend.savepoint.rewrite.plan import Plan
from statebackend.savepoint.rewrite.savepoint_writer import SavepointWriter, WrittenSavepoint
from statebackend.savepoint.rewrite.staged_entries import StagedEntries, StagedPart, discard_staged, stage_entries

__all__ = [
    "EntrySchema",
    "Plan",
    "Remainder",
    "SavepointWriter",
    "StagedEntries",
    "StagedPart",
    "WrittenSavepoint",
    "discard_staged",
    "remains",
    "require_absent",
    "stage_entries",
]
