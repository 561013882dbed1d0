"""The keyed state of a subtask: the final `KeyedStateBackend`, and the `StateStore` that it is composed with.

Here are registrations, verdicts on state, key contexts, the enumeration of keys, restored and written meta data, the
files of a state and their merging, the parts that a store may use. What a kind of state is (`statebackend.kinds`) and
where entries are (`statebackend.heap`, `statebackend.rocksdb`, a third party's) must not be here.
"""
