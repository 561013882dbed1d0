"""Jobs in this process beside those of bytewax, a stream processor for Python whose engine is in Rust."""
