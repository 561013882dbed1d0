"""Keyed state as tables of Arrow: typed columns instead of an object for each entry.

    table = TabularState.of(meta, state)    of one state of one subtask; reads nothing
    table.schema                            pyarrow.Schema: key_group, key, [namespace], [user_key], value, ...
    table.notes                             what stands in the place of something else, by the path of it
    for batch in table.batches(rows):       rows: canonical rows, as `reading.stored_rows` gives them
        ...                                 pyarrow.RecordBatch of table.schema, bounded in rows and bytes

    ColumnBatches.of(meta, state)           the same table from rows as columns (`reading.stored_columns`), and only the
                                            columns that are asked for: simple types are decoded as whole columns

    ColumnForms().of(serializer)            the form of the values of one serializer: its type, and its arrays

``meta`` and ``state`` are what `decode_meta` gives of a handle. Which type of Arrow a serializer's values have is the
table in `known_forms`; a serializer that is not of this library gets its form from who passes
``ColumnForms(added={PointSerializer: ...})``, and is text in JSON otherwise. Nothing here opens files or knows Spark.
"""

from savepoints.tabular.column_batches import ColumnBatches
from savepoints.tabular.column_forms import ColumnForm, ListForm, MapForm, ScalarForm, StructForm
from savepoints.tabular.known_forms import ColumnForms
from savepoints.tabular.state_tables import TabularState

__all__ = [
    "ColumnBatches",
    "ColumnForm",
    "ColumnForms",
    "ListForm",
    "MapForm",
    "ScalarForm",
    "StructForm",
    "TabularState",
]
