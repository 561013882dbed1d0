"""Adds this directory to the path, so that its tests can import the helper modules."""
