"""Stateful processors of Spark's on our state: the operator, and the handles that a processor is given.

`processor_operator` runs a processor over the records of a subtask, `processor_handle` is what its ``init`` is given,
`processor_states` and `processor_timers` are state and timers as it sees them, `state_schemas` makes serializers of
its schemas. No Spark here: a processor is called by its methods.
"""
