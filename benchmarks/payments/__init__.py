"""A fraud detector over card payments: our job beside the same in plain Python, with a profile by part."""
