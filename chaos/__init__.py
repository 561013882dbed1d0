"""Chaos on real Spark: the flights job, whose processes are killed at random, must be equal to plain Spark in the end.

    strikes       what is done to which process, and when: by chance, and the same for the same seed
    driven_job    one driver process of the job, seen from outside: how far it is, its processes, how it ended
    rounds        jobs one after the other, struck until all strikes are spent; what must hold in the end of each
    report        how long the job took to go on after each strike

The simulation tries every step of the protocol without Spark; this tries few steps of the whole,
with real processes, files and signals. When exactly a signal hits is the machine's chance, so a seed repeats what is
struck and after how many epochs, and not the instruction.
"""
