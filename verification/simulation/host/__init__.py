"""The machine of a schedule: its disk, its processes, its clock and its chance.

Nothing here knows a task or a job, and all of it is told by the seed of the schedule.
"""
