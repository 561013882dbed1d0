"""From the graph of a job to Spark plans, and where their tasks run."""
