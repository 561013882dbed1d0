"""Chaos tests on real Spark: random strikes hit the flights job, and its output must equal that of plain Spark.

A strike is an injected fault, for example SIGKILL to a process or a full disk.

    strikes       the kinds of strikes, and the strikes of a seed
    worlds        the environments of a job, and strikes on them: a disk, a cluster with ZooKeeper, an object store
    driven_job    one driver process of the job: its epochs, its processes and its result
    rounds        runs one job under strikes, and checks its output
    run_directory the directory of a run, and the cleanup of earlier runs that were killed
    progress, hang_diagnostics, processes
                  detect a job that makes no progress, and collect diagnostics of its processes
    report        the recovery times after strikes
    sinks         a local job that writes to Delta, PostgreSQL and Kafka, and its driver, `sinks_driver` (`--sinks`)

The simulation tests every step of the protocol without Spark. Chaos tests cover fewer steps, with real processes, files
and signals. A seed repeats the target of each strike and the number of epochs before it. The instruction that a signal
interrupts is chance.
"""
