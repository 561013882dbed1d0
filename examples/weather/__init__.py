"""Event time on real data: hourly delays with the weather, silent aircraft, and flights reported too late.

`reports` is the year in the order of its reports. `job` is the job; `version_1` and `version_2` are the part that
changes, and `silence`, `airline_names` and `weather_of_the_hour` are its other functions. `spark_job` runs it on Spark,
`driver` runs it in a process of its own, and `expected` computes the same results in plain SQL. `demo` runs all steps:
`python -m examples.weather`.
"""
