"""State as Arrow tables: the column type of each serializer, and entries as record batches."""

from statebackend.savepoint.tables.state_tables import TabularState
from statebackend.savepoint.value_forms import (
    ColumnForm,
    ColumnForms,
    ListForm,
    MapForm,
    ScalarForm,
    StructForm,
)

__all__ = [
    "ColumnForm",
    "ColumnForms",
    "ListForm",
    "MapForm",
    "ScalarForm",
    "StructForm",
    "TabularState",
]
