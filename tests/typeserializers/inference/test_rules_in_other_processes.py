"""Passed inference rules are used in this process, and in another that never imported their module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

import typeserializers as ts
from typeserializers import serializer_for

ROOT = Path(ts.__file__).parent.parent

DRIVER = """
import sys
from typing import Any

import attrs
from pyspark import cloudpickle

import typeserializers as ts


class Money(int):
    "An amount in cents."


rules = ts.InferenceRules(ts.DEFAULT_RULES)


@rules.register
def infer_money(hint: Any, inference: ts.Inference) -> Any:
    return ts.LongSerializer() if hint is Money else None


@attrs.define
class Base:
    __pojo_class__ = "travel.Base"
    id: int


@attrs.define
class Priced(Base):
    __pojo_class__ = "travel.Priced"
    price: Money


serializer = ts.PojoSerializer(Base, rules=rules)
sys.stdout.buffer.write(cloudpickle.dumps((serializer, Priced(1, Money(250)))))
"""

WORKER = """
import pickle, sys

import typeserializers as ts

serializer, value = pickle.loads(sys.stdin.buffer.read())
assert serializer.shape.rules.base is ts.DEFAULT_RULES
assert serializer.from_bytes(serializer.to_bytes(value)) == value
try:
    ts.PojoSerializer(type(value))
except ts.UnknownTypeError:
    print("only by the rules that were passed")
"""


class Money(int):
    """An amount in cents."""


@attrs.frozen
class Account:
    balance: Money


def test_rules_are_used_only_where_passed() -> None:
    rules = ts.InferenceRules(ts.DEFAULT_RULES)

    @rules.register
    def infer_money(hint: Any, inference: ts.Inference) -> Any:
        return ts.IntSerializer() if hint is Money else None

    assert serializer_for(dict[str, list[Account]], rules) == ts.MapSerializer(
        ts.StringSerializer(), ts.ListSerializer(ts.AttrsSerializer(Account, rules=rules))
    )
    assert ts.AttrsSerializer(Account, rules=rules).fields[0].serializer == ts.IntSerializer()
    for infer in (lambda: serializer_for(Account), lambda: ts.AttrsSerializer(Account)):
        with pytest.raises(ts.UnknownTypeError, match="Money"):
            infer()


def test_rules_are_pickled_with_a_serializer() -> None:
    def run(program: str, given: bytes = b"") -> bytes:
        done = subprocess.run([sys.executable, "-c", program], input=given, capture_output=True, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    assert run(WORKER, run(DRIVER)).decode().strip() == "only by the rules that were passed"
