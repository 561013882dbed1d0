"""What is seen of a job while it runs: its figures, events for listeners, reports, and what Prometheus is told.

Both runtimes feed one recorder, and whatever is shown comes from it, so that everything shows the same numbers. Nothing
here decides anything for a job, and nothing here knows Spark.
"""
