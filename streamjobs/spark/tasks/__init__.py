"""What runs on the workers: the task of a partition, its rows in and out of Arrow, and what is sent there for a run.

A worker knows nothing of the program but what travels here. No coordination: a task acknowledges, and no more.
"""
