"""Compares the keyed state backends with what they are built on: a dict, and rocksdict with hand-packed bytes."""
