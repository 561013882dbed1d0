"""Where checkpoints are kept: file systems, the completed-checkpoint store, savepoints, the job directory and its lock.

What is in the files is said by `checkpointing.metadata`, and when a checkpoint is complete by
`checkpointing.coordinator`: neither is decided here.
"""
