"""Servers for the tests of connectors, which run only with `make test-connectors`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kafka_server import KafkaServer
    from postgres_server import PostgresServer


def _need_servers() -> None:
    if not os.environ.get("STATEBACKEND_TEST_SERVERS"):
        pytest.skip("needs a server: make test-connectors")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A server for all tests of this process. Each test uses its own database, and none may stop the server."""
    _need_servers()
    from postgres_server import running_server

    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    """A broker for all tests of this process. Each test uses its own topics, and none may stop the broker."""
    _need_servers()
    from kafka_server import running_broker

    with running_broker() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_with_topic_ids() -> Iterator[KafkaServer]:
    """A broker that assigns ids to topics."""
    _need_servers()
    from kafka_server import running_broker

    with running_broker(has_topic_ids=True) as server:
        yield server
