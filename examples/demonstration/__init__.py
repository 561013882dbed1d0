"""What the demonstrations share: how they talk, kill a driver in mid-epoch, start Spark, and compare what came out."""
