"""Chaos on real Spark: the flights job, whose processes are killed at random, must be equal to plain Spark in the end.

    strikes       what is done to which process, and when: by chance, and the same for the same seed
    worlds        where a job runs: a disk, a cluster with ZooKeeper, an object store; what is done to them
    driven_job    one driver process of the job, seen from outside: how far it is, its processes, how it ended
    rounds        jobs one after the other, struck until all strikes are spent; what must hold in the end of each
    run_directory what must not outlive a run, and is cleared away by the next one if the run was killed
    progress, last_words, processes
                  when a job is waited for no longer, and what its processes have said by then
    report        how long the job took to go on after each strike
    sinks         a local job that writes to Delta, PostgreSQL and Kafka, and its driver, `sinks_driver` (`--sinks`)

The simulation tries every step of the protocol without Spark; this tries few steps of the whole,
with real processes, files and signals. When exactly a signal hits is the machine's chance, so a seed repeats what is
struck and after how many epochs, and not the instruction.
"""
