"""The kinds of keyed state, one file each, and the one table of them (`statebackend.kinds.known_kinds`).

A kind is its descriptor, the roles of its serializers, what one stored entry is, the same with a time-to-live, and its
handles apart from any store: a store offers the three forms that `TableForm` lists, and every kind is built over one of
them. Adding a kind is adding a file, and an entry in the table. What stores entries, takes verdicts or writes snapshots
must not be here.
"""
