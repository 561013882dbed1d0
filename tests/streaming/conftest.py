"""Adds this directory to the path, so that the tests below can import its modules.

The Spark session that they take is the fixture `spark` of `tests/conftest.py`.
"""
