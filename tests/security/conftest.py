"""Adds this directory to the path, so that the tests below can import its modules."""
