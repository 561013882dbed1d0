"""The lock file of a job's state, ``state.lock``: what its states are, as text for a review and as bytes for a verdict.

    locked_state   what is in a lock, and what a start asks of stored state: the same of a lock as of a savepoint
    lock_text      the lines that a person reads, from the snapshots alone
    lock_format    the file: lines, bytes and seals, written and read back
    lock_files     lock files on a disk: one beside the program, and a directory with all there have been

Nothing here knows a job or judges anything: `streamjobs.runtime` makes a lock of a job, and puts a job to one.
"""
