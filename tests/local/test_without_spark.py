"""The local environment needs no Spark: neither the package nor a JVM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys

class Rejected:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"{name} is asked for", name=name)

sys.meta_path.insert(0, Rejected())

from statebackend import ValueStateDescriptor
from statebackend import KeyedProcessFunction
from statebackend.local import LocalStreamEnvironment

class Count(KeyedProcessFunction):
    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value, context):
        self.count.update(self.count.value() + 1)
        yield {"word": value.word, "count": self.count.value()}

rows = []
environment = LocalStreamEnvironment(parallelism=2)
words = environment.from_elements([{"word": "a"}, {"word": "a"}], schema="word string")
words.key_by("word").process(Count(), uid="count", schema="word string, count bigint").sink_to(rows)
environment.execute()
print(rows)
"""


def test_a_local_job_imports_no_module_of_spark() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "[Row(word='a', count=1), Row(word='a', count=2)]\n"
