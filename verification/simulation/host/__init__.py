"""The simulated machine of a schedule: disk, processes, clock and random numbers, all from its seed.

Nothing here depends on tasks or jobs.
"""
