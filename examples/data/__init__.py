"""The example data: every flight that left New York City in 2013, and how to place it before a stream.

`flights_dataset` says what the files are, `staging` hands them to Structured Streaming in time order, and
`prepare_flights` builds them anew from the published package.  `README.md` tells origin and licence.
"""
