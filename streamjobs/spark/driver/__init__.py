"""The driver's side of a run: epochs carried out for the table of epochs, their time, their end, savepoints, fall-back.

What comes next in an epoch is decided in `streamjobs.runtime`, what a plan looks like in `streamjobs.spark.plans`.
"""
