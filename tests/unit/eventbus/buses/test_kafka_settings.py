"""From the options of the Kafka bus to librdkafka's settings, what is refused, and what errors mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from tardis_machine.errors import SettingsError
from tardis_machine.eventbus.buses.kafka import cluster, create_bus, create_routing
from tardis_machine.eventbus.buses.kafka.cluster import is_terminal
from tardis_machine.eventbus.buses.kafka.settings import secrets_of, to_client_settings, to_producer_settings
from tardis_machine.settings import from_keywords


def options_of(**keywords: Any) -> dict[str, Any]:
    given = {"brokers": ["a", "b:9093"], "topic": "events"} | {name.replace("_", "-"): value for name, value in keywords.items()}
    return from_keywords({"kafka": given}, {}).for_bus("kafka")


def problems_of(**keywords: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        to_client_settings(options_of(**keywords))
    return caught.value.problems


def test_defaults_deliver_at_least_once_in_order() -> None:
    settings = to_client_settings(options_of()) | to_producer_settings(options_of())
    expected = {
        "bootstrap.servers": "a:9092,b:9093",
        "security.protocol": "PLAINTEXT",
        "acks": "all",
        "enable.idempotence": True,
        "max.in.flight.requests.per.connection": 5,
        "message.timeout.ms": 0,
        "compression.type": "lz4",
    }
    assert expected.items() <= settings.items()


def test_without_sequence_numbers_one_request_is_in_flight() -> None:
    for keywords in ({"acks": "1"}, {"idempotence": False}):
        settings = to_producer_settings(options_of(**keywords))
        assert settings["enable.idempotence"] is False
        assert settings["max.in.flight.requests.per.connection"] == 1


def test_files_imply_encryption(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    assert to_client_settings(options_of(ssl=True))["security.protocol"] == "SSL"
    settings = to_client_settings(options_of(ssl_ca=ca, sasl_mechanism="scram-256", sasl_username="u", sasl_password="p"))
    assert (settings["security.protocol"], settings["sasl.mechanisms"]) == ("SASL_SSL", "SCRAM-SHA-256")
    assert settings["ssl.ca.location"] == str(ca)


def test_further_settings_pass() -> None:
    options = options_of(option={"linger.ms": "50", "socket.nagle.disable": "true", "max.in.flight": "3", "partitioner": "fnv1a"})
    assert to_client_settings(options)["socket.nagle.disable"] == "true"
    producer = to_producer_settings(options)
    assert (producer["linger.ms"], producer["max.in.flight"], producer["partitioner"]) == ("50", "3", "fnv1a")
    assert "linger.ms" not in to_client_settings(options)


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"option": {"acks": "0"}}, "--kafka-option: acks has an option of its own, --kafka-acks"),
        ({"option": {"sasl.password": "x"}}, "--kafka-option: sasl.password has an option of its own, --kafka-sasl-password"),
        ({"option": {"retries": "3"}}, "--kafka-option: retries can't be set: a record that is given up is overtaken"),
        ({"option": {"transactional.id": "x"}}, "--kafka-option: transactional.id can't be set: transactions"),
        (
            {"option": {"partitioner": "random"}},
            "--kafka-option: partitioner must keep a key in its partition: expected consistent",
        ),
        ({"option": {"max.in.flight": "5"}, "acks": "1"}, "must be 1 without --kafka-idempotence"),
        ({"sasl_username": "u"}, "--kafka-sasl-username needs --kafka-sasl-mechanism"),
        ({"sasl_mechanism": "aws-msk-iam"}, "aws-msk-iam and --kafka-aws-region must be given together"),
        ({"ssl_cert": "/none"}, "--kafka-ssl-cert and --kafka-ssl-key must be given together"),
        ({"schema_registry_password": "x"}, "--kafka-schema-registry-password needs --kafka-schema-registry-url"),
        ({"topic_partitions": 3}, "--kafka-topic-partitions needs --kafka-create-topics"),
        ({"headers": "none", "meta_headers_prefix": "m-"}, "--kafka-meta-headers-prefix has no effect with --kafka-headers none"),
    ],
)
def test_what_is_wrong_is_named(keywords: dict[str, Any], says: str) -> None:
    assert any(says in problem for problem in problems_of(**keywords)), problems_of(**keywords)


def test_every_problem_is_told_at_once_and_no_secret_with_it() -> None:
    problems = problems_of(sasl_password="s3cret", create_topics=True, acks="1", idempotence=True)
    assert len(problems) == 4
    assert "s3cret" not in "".join(problems)


def test_secrets_are_known_wherever_they_were_given() -> None:
    options = options_of(
        sasl_mechanism="plain",
        sasl_username="u",
        sasl_password="one",
        option={"ssl.keystore.password": "two", "linger.ms": "5", "sasl.oauthbearer.client.secret": "three"},
    )
    assert sorted(secrets_of(options)) == ["one", "three", "two"]
    assert all(secret not in repr(create_bus(options)) for secret in secrets_of(options))


def test_topics_are_those_that_some_payload_case_goes_to() -> None:
    routed = {"topic_routing": "trade:trades,bookChange:books"}
    assert set(create_bus(options_of(**routed))._topics) == {"events", "trades", "books"}
    assert create_bus(options_of(**routed, include_payloads="trade,book_change"))._topics == ["trades", "books", "events"]
    assert create_bus(options_of(**routed, include_payloads="trade,book_change,-session_end"))._topics == ["trades", "books"]
    assert create_routing(options_of(headers="none")).headers is False


def test_errors_that_would_come_again_are_told_from_those_that_pass() -> None:
    names = {name for name in dir(KafkaError) if name.lstrip("_").isupper()}
    named = cluster._TERMINAL | cluster._UNKNOWN_TOPIC | cluster._NOT_LET_IN.keys()
    assert named <= names, "librdkafka knows no such error"
    terminal = {name for name in names if is_terminal(name)}
    assert {"MSG_SIZE_TOO_LARGE", "TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "TOPIC_EXCEPTION"} <= terminal
    passing = {
        *("NOT_ENOUGH_REPLICAS", "NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "REQUEST_TIMED_OUT", "KAFKA_STORAGE_ERROR"),
        *("OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_PRODUCER_ID", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "_FATAL"),
        *(
            "_PURGE_QUEUE",
            "_PURGE_INFLIGHT",
            "_TRANSPORT",
            "_ALL_BROKERS_DOWN",
            "_MSG_TIMED_OUT",
            "_QUEUE_FULL",
            "_AUTHENTICATION",
        ),
        *("THROTTLING_QUOTA_EXCEEDED", "NETWORK_EXCEPTION", "UNKNOWN_TOPIC_OR_PART", "UNKNOWN", "_UNKNOWN_TOPIC"),
    }
    assert passing <= names
    assert not passing & terminal
