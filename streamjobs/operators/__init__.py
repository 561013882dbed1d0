"""Operators: what runs a user's function over the records of a subtask, with its state.

`operator` has the protocol that a subtask drives, and all that it knows of an operator; `operator_factories` makes one
for each kind of node. No plan, no channel, no checkpoint and no clock here: an operator is given batches and time, and
emits.
"""
