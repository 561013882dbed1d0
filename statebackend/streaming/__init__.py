"""Functions, streams, windows, event time and operators: what every runtime shares."""
