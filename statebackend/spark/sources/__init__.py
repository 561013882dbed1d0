"""The sources of a Spark job as one stream, their progress, and Spark's offset log."""
