"""Helpers of the Kafka source and the Kafka sink: settings of librdkafka, and errors that name the target and a fix."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any, Final

from statebackend.checkpoint.fs.store_uri import redacted
from statebackend.streaming.errors import StreamJobError

MISSING_TOPIC: Final = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")
"""The names of the errors of a topic that does not exist."""

_SECRET: Final = re.compile(r"password|secret|\.key|\.pem|oauthbearer\.config|jaas", re.IGNORECASE)
"""Settings with values that must not appear in errors and logs."""

_FIXES: Final[Mapping[str, str]] = {
    "_TRANSPORT": "Start the broker, or correct bootstrap.servers or security.protocol",
    "_ALL_BROKERS_DOWN": "Start the broker, or correct bootstrap.servers or security.protocol",
    "_RESOLVE": "Correct the host names in bootstrap.servers",
    "_TIMED_OUT": "Start the broker, or correct bootstrap.servers, the listeners of the broker or security.protocol",
    "_AUTHENTICATION": "Correct the user, the password or sasl.mechanism",
    "SASL_AUTHENTICATION_FAILED": "Correct the user, the password or sasl.mechanism",
    "_SSL": "Correct security.protocol or the ssl settings",
    "_INVALID_ARG": "Correct the settings of librdkafka",
    "TOPIC_AUTHORIZATION_FAILED": "Grant the user READ or WRITE, and DESCRIBE, on the topic",
    "GROUP_AUTHORIZATION_FAILED": "Grant the user READ on the group of group.id",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "Grant the user WRITE and DESCRIBE on the transactional ids of the sink",
    "CLUSTER_AUTHORIZATION_FAILED": "Grant the user IDEMPOTENT_WRITE on the cluster",
    "UNKNOWN_TOPIC_OR_PART": "Create the topic, or correct its name",
    "_UNKNOWN_TOPIC": "Create the topic, or correct its name",
    "_UNKNOWN_PARTITION": "Correct the number of the partition",
    "MSG_SIZE_TOO_LARGE": "Raise max.message.bytes of the topic and message.max.bytes of the sink",
    "INVALID_TRANSACTION_TIMEOUT": "Lower transaction.timeout.ms, or raise transaction.max.timeout.ms of the broker",
    "_FENCED": "Another driver runs the job. Stop one of them",
    "INVALID_PRODUCER_EPOCH": "Another driver runs the job. Stop one of them",
    "PRODUCER_FENCED": "Another driver runs the job. Stop one of them",
}
"""How to fix an error, by the name of its code."""

_CAUSES: Final = ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL", "_RESOLVE", "_TRANSPORT")
"""Errors of a connection. The first ones are the cause of the later ones."""


def kafka_module(what: str) -> ModuleType:
    """Import confluent-kafka. Raises `ImportError` that names the extra."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise ImportError(f"{what} needs confluent-kafka: pip install 'statebackend[kafka]'") from error
    return confluent_kafka


def kafka_name(settings: Mapping[str, Any]) -> str:
    """Return the servers, for identities and errors. Raises `ValueError` for settings without servers."""
    servers = settings.get("bootstrap.servers")
    if not isinstance(servers, str) or not servers:
        raise ValueError("the settings of Kafka need bootstrap.servers, such as {'bootstrap.servers': 'broker:9092'}")
    return servers


def without_secrets(settings: Mapping[str, Any], message: object) -> str:
    """Return a message with the secret values of the settings replaced."""
    secrets = [value for name, value in settings.items() if _SECRET.search(name) and isinstance(value, str)]
    return redacted(str(message), secrets)


def fix_of(error: Any) -> str:
    """Return how to fix a `KafkaError`, or an empty string if unknown."""
    # librdkafka reports a listener without TLS as a broker that closes connections.
    is_tls = error.name() == "_TRANSPORT" and "SSL" in error.str()
    return _FIXES.get("_SSL" if is_tls else error.name(), "")


def partition_ids(
    client: Any,
    topic: str,
    where: str,
    timeout_s: float,
    settings: Mapping[str, Any],
    reported: Collection[Any],
    advice: str = "",
) -> list[int]:
    """Return the sorted partitions of a topic. ``advice`` follows the error of a topic that does not exist.

    ``reported`` are the errors for which librdkafka has called ``error_cb``.

    Raises `StreamJobError` if the topic does not exist or no broker answers.
    """
    kafka = kafka_module(where)
    try:
        found = client.list_topics(topic, timeout=timeout_s).topics.get(topic)
    except kafka.KafkaException as error:
        # It does not say why no broker has answered. Polling calls error_cb.
        client.poll(0)
        problem = _cause(reported) or error.args[0]
        raise StreamJobError(
            f"{where}: no metadata of topic {topic!r}: {without_secrets(settings, problem.str())}. {fix_of(problem)}"
        ) from None
    if found is not None and found.error is None and found.partitions:
        return sorted(found.partitions)
    problem = None if found is None else found.error
    if problem is not None and problem.name() not in MISSING_TOPIC:
        raise StreamJobError(f"{where}: topic {topic!r}: {problem.str()}. {fix_of(problem)}")
    raise StreamJobError(f"{where}: topic {topic!r} does not exist. Create it, or correct its name{advice}")


def _cause(reported: Collection[Any]) -> Any:
    """Return the error nearest to the cause, or None. A longer text of librdkafka has its guess of the cause."""
    for name in _CAUSES:
        problems = [one for one in reported if one.name() == name]
        if problems:
            return max(problems, key=lambda one: len(one.str()))
    return None
