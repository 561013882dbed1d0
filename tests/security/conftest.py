"""Puts this directory in the path, as pytest does for one with this file: the tests below import modules of it."""
