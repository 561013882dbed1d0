"""What runs on Spark's workers, and what is sent there."""
