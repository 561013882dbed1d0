"""File systems and object stores that checkpoints are written to."""
