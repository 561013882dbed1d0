"""What a checkpoint knows about state without knowing what the state is: handles, paths, checksums.

Nothing here reads or writes a file.
"""
