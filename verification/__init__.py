"""Checks of the product as a whole: simulated schedules with faults, and real jobs with real kills."""
