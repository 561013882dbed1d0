"""The ground of every serializer: its contract and hooks, generated code, counts, references, rules for hints.

Nothing here knows a type of value: what is written for a number, a list or a record is in the rooms of the families.
"""
