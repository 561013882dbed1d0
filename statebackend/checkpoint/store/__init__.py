"""Where completed checkpoints, savepoints and the files of a job are kept."""
