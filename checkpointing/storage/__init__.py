"""Where checkpoints are kept: file systems, the completed-checkpoint store, savepoints, the job directory and its lock.

What a checkpoint means is decided in `checkpointing.coordinator`.
"""
