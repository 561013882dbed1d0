"""A fraud detector over card payments, compared with plain Python, with a profile by part of the runtime."""
