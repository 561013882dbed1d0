import sys
from typing import Any, NamedTuple

import attrs
from pyspark.sql import SparkSession

from statebackend import KeyedProcessFunction, ValueStateDescriptor
from statebackend.spark import ParquetSink, SparkStreamEnvironment


@attrs.frozen
class Aircraft:
    flights: int = 0
    last_airport: str | None = None


class Landing(NamedTuple):
    tailnum: str
    flights: int
    previous_airport: str | None
    airport: str


class FollowAircraft(KeyedProcessFunction[str, Any, Landing]):
    aircraft = ValueStateDescriptor("aircraft", Aircraft, default=Aircraft())

    def process_element(self, flight, context):
        before = self.aircraft.value()
        self.aircraft.update(Aircraft(before.flights + 1, flight.dest))
        yield Landing(flight.tailnum, before.flights + 1, before.last_airport, flight.dest)


input_dir, work_dir = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
columns = "tailnum string, dest string, time_hour timestamp, minute int, origin string, carrier string, flight int"
files = spark.readStream.schema(columns).option("pathGlobFilter", "*.parquet").parquet(input_dir)
env = SparkStreamEnvironment(spark, job_dir=f"{work_dir}/job", backend="rocksdb", parallelism=2)
flights = env.from_dataframe(files).filter(lambda flight: flight.tailnum is not None)
order = ["time_hour", "minute", "origin", "carrier", "flight"]
landings = flights.key_by("tailnum").process(FollowAircraft(), uid="aircraft", order_by=order)
landings.sink_to(ParquetSink(f"{work_dir}/rows"))
env.execute("follow-aircraft", trigger={"availableNow": True}).await_termination()
