"""The durable form of records in flight in a snapshot."""

from __future__ import annotations

import hashlib

from manual_requests import Answering, Asking

from snapshots.envelope import snapshot_to_bytes
from statebackend.streaming.operators.async_wait import STATE_NAME, record_serializer
from statebackend.streaming.rows.declared_schema import parsed_schema
from statebackend.streaming.rows.record_serializer import stored_records

SCHEMA = "v int, `a b` string"


def test_the_bytes_of_records_in_flight_are_stable() -> None:
    stored: list[bytes] = []
    with Asking(Answering(), carries=True, keyed=True, schema=SCHEMA, stored=stored).closed() as asking:
        asking.records((1, "x"), (None, None), keys=["k", 7], timestamps=[1000, None])
        asking.operator.prepare_snapshot()
    assert STATE_NAME == "records-in-flight"
    assert [data.hex() for data in stored] == [FIRST, SECOND]


def test_the_schema_of_records_in_flight_is_stable() -> None:
    form = stored_records(parsed_schema(SCHEMA, "test").arrow, "test")
    snapshot = snapshot_to_bytes(record_serializer(form).snapshot_configuration())
    assert b"column_612062" in snapshot
    assert hashlib.sha256(snapshot).hexdigest() == SNAPSHOT


FIRST = "0000000000000003e80004276b270000000001000278"
SECOND = "010002370101"
SNAPSHOT = "95b5f085bc1d2819616ca9288152bd74784e33bdad879d8be39a004631a34c6d"
