"""What every runtime shares: what a job starts from, what each subtask restores, what state a function registers.

No Spark here, and no thread.
"""
