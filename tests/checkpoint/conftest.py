"""Puts this directory in the path, where the builders of small values are, for the tests of all rooms."""
