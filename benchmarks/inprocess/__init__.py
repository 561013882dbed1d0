"""Compares jobs on the local runtime with Bytewax, a Python stream processor with an engine in Rust."""
