"""The example data: all flights that left New York City in 2013, and the weather.

`flights_dataset` and `weather_dataset` describe the files. `staging` places them before Structured Streaming in time
order. `prepare_flights` and `prepare_weather` rebuild them from the `published_package`. `README.md` has origin and
licence.
"""
