"""Event time on real data: delays by the hour beside the weather, aircraft that are silent, flights told too late.

`reports` is the year in the order that it is reported in; `job` chains the job, `version_1` and `version_2` are what
changes in it; `silence`, `airline_names` and `weather_of_the_hour` are its other functions. `spark_job` puts it on
Spark, `driver` runs it as a process of its own, `expected` says in plain SQL what must come out, and `demo` tells the
story: `python -m examples.weather`.
"""
