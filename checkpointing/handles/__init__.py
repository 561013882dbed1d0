"""What a checkpoint knows about state without knowing what the state is: handles, paths, checksums.

The bottom of the floor. Nothing here reads or writes a file, knows what a checkpoint is made of beyond state, or opens
the `meta` of a handle: that belongs to whoever took the snapshot.
"""
