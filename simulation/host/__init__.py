"""The machine of a schedule: its disk, its processes, its clock and its chance."""
