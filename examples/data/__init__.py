"""The example data: every flight that left New York City in 2013, the weather, and how to place it before a stream.

`flights_dataset` and `weather_dataset` say what the files are, `staging` hands them to Structured Streaming in time
order, and `prepare_flights` and `prepare_weather` build them again from the `published_package`.  `README.md` tells
origin and licence.
"""
