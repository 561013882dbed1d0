"""Records in the layout of Flink's POJOs, with their subclasses."""
