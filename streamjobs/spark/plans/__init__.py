"""From the graph of a job to Spark plans: checked once, built anew for every epoch, each row sent to its subtask.

Nothing here starts an epoch or stores anything.
"""
