"""Puts this directory in the path, as pytest does for one with this file: the tests below import modules of it.

The Spark session that they take is the fixture `spark` of `tests/conftest.py`.
"""
