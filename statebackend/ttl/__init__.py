"""Time-to-live of keyed state: values, list elements and map entries that expire, on every backend.

`config` is what a descriptor carries; `stored_form` says how such state is stored; `states` are the handles, which wrap
those of whatever backend; `row_filter` leaves expired entries out of what is written whole; `incremental_cleanup` finds
expired entries that nobody reads any more.
"""
