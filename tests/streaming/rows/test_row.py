"""Row classes."""

from __future__ import annotations

import gc

from statebackend.streaming.rows.row_reader import row_class


def test_a_row_class_is_created_despite_garbage_collection() -> None:
    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        made = row_class(("made", "while", "collecting"))
    finally:
        gc.set_threshold(*threshold)
    row = tuple.__new__(made, (1, 2, 3))
    assert (row.made, row["while"], row.collecting) == (1, 2, 3)
