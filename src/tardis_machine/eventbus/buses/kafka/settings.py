"""From the options of the Kafka bus to librdkafka's settings.

Invariant: what would lose, reorder or misreport a record can't be set, whoever asks; every problem is named together with the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ....errors import SettingsError, TerminalDeliveryError

__all__ = ["TOPIC", "TOPIC_TAKES", "MskToken", "secrets_of", "to_client_settings", "to_producer_settings"]

TOPIC = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
TOPIC_TAKES = "a topic's name: up to 249 letters, digits, dots, hyphens and underscores"

_MECHANISMS = {"plain": "PLAIN", "scram-256": "SCRAM-SHA-256", "scram-512": "SCRAM-SHA-512", "aws-msk-iam": "OAUTHBEARER"}

# Settings of librdkafka that are options of their own.
_OWN_SETTINGS: Mapping[str, str] = {
    "bootstrap.servers": "--kafka-brokers",
    "metadata.broker.list": "--kafka-brokers",
    "client.id": "--kafka-client-id",
    "acks": "--kafka-acks",
    "request.required.acks": "--kafka-acks",
    "enable.idempotence": "--kafka-idempotence",
    "compression.type": "--kafka-compression",
    "compression.codec": "--kafka-compression",
    "security.protocol": "--kafka-ssl and --kafka-sasl-mechanism",
    "sasl.mechanism": "--kafka-sasl-mechanism",
    "sasl.mechanisms": "--kafka-sasl-mechanism",
    "sasl.username": "--kafka-sasl-username",
    "sasl.password": "--kafka-sasl-password",
    "ssl.ca.location": "--kafka-ssl-ca",
    "ssl.certificate.location": "--kafka-ssl-cert",
    "ssl.key.location": "--kafka-ssl-key",
    "ssl.key.password": "--kafka-ssl-key-password",
}
# Settings without which a record could be lost, overtaken or reported wrongly, and what happens then.
_HELD_SETTINGS: Mapping[str, str] = {
    **dict.fromkeys(("message.timeout.ms", "delivery.timeout.ms"), "a record that times out is overtaken by later ones"),
    **dict.fromkeys(("message.send.max.retries", "retries"), "a record that is given up is overtaken by later ones"),
    **dict.fromkeys(("queue.buffering.max.messages", "queue.buffering.max.kbytes"), "a batch must fit"),
    "delivery.report.only.error": "confirmations are counted",
    "transactional.id": "transactions are not used",
    "enable.gapless.guarantee": "gaps are closed by the publisher",
    **dict.fromkeys(("on_delivery", "error_cb", "stats_cb", "throttle_cb", "oauth_cb", "logger"), "it is not text"),
}
_IN_FLIGHT_SETTINGS = ("max.in.flight", "max.in.flight.requests.per.connection")
_KEYED_PARTITIONERS = ("consistent", "murmur2", "fnv1a", "murmur2_random", "fnv1a_random")


def to_client_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """librdkafka's settings for all clients of the bus; SettingsError has a sentence for each option that is wrong."""
    problems = [*_wrong_security(options), *_wrong_topics(options), *_wrong_extras(options)]
    if problems:
        raise SettingsError(problems)
    mechanism = options["sasl_mechanism"]
    encrypts = options["ssl"] or mechanism == "aws-msk-iam" or any(options[name] for name in _SSL_FILES)
    settings: dict[str, Any] = {
        "bootstrap.servers": ",".join(options["brokers"]),
        "client.id": options["client_id"],
        "security.protocol": ("SASL_" if mechanism else "") + ("SSL" if encrypts else "PLAINTEXT"),
        "socket.keepalive.enable": True,
        "reconnect.backoff.max.ms": 1000,
        # A topic that was verified and is not there any more is missed soon, not after half a minute.
        "topic.metadata.propagation.max.ms": 2000,
        # What goes wrong is told by errors; its own log would go to the standard error stream.
        "log_level": 0,
    }
    for name, setting in _SSL_FILES.items():
        if options[name]:
            settings[setting] = str(options[name])
    if options["ssl_key_password"]:
        settings["ssl.key.password"] = options["ssl_key_password"]
    if mechanism:
        settings["sasl.mechanisms"] = _MECHANISMS[mechanism]
    if mechanism == "aws-msk-iam":
        settings["oauth_cb"] = MskToken(options["aws_region"])
    elif mechanism:
        settings |= {"sasl.username": options["sasl_username"], "sasl.password": options["sasl_password"]}
    extras = {name: value for name, value in (options["option"] or {}).items() if name not in _PRODUCER_ONLY}
    return settings | extras


_SSL_FILES = {"ssl_ca": "ssl.ca.location", "ssl_cert": "ssl.certificate.location", "ssl_key": "ssl.key.location"}
# An admin client would warn of these.
_PRODUCER_ONLY = frozenset(
    ("linger.ms", "batch.size", "batch.num.messages", "message.max.bytes", "partitioner", *_IN_FLIGHT_SETTINGS)
)


def to_producer_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    is_idempotent = _is_idempotent(options)
    return {
        "acks": options["acks"],
        "enable.idempotence": is_idempotent,
        # Without sequence numbers a request that fails is overtaken by the one behind it.
        "max.in.flight.requests.per.connection": 5 if is_idempotent else 1,
        "compression.type": options["compression"],
        "partitioner": "murmur2_random",
        # Records come in batches already: what ends one should not wait for more.
        "linger.ms": 2,
        "message.timeout.ms": 0,
        "queue.buffering.max.messages": 0,
        "queue.buffering.max.kbytes": 2**31 - 1,
        "delivery.report.only.error": True,
        **{name: value for name, value in (options["option"] or {}).items() if name in _PRODUCER_ONLY},
    }


def _is_idempotent(options: Mapping[str, Any]) -> bool:
    given: bool | None = options["idempotence"]
    return options["acks"] == "all" if given is None else given


def _wrong_security(options: Mapping[str, Any]) -> Iterator[str]:
    mechanism, username, password = (options[f"sasl_{name}"] for name in ("mechanism", "username", "password"))
    if mechanism in ("plain", "scram-256", "scram-512"):
        for name, value in (("username", username), ("password", password)):
            if not value:
                yield f"--kafka-sasl-{name} is required by --kafka-sasl-mechanism {mechanism}"
    elif username or password:
        given = "username" if username else "password"
        yield f"--kafka-sasl-{given} needs --kafka-sasl-mechanism plain, scram-256 or scram-512"
    if (mechanism == "aws-msk-iam") != bool(options["aws_region"]):
        yield "--kafka-sasl-mechanism aws-msk-iam and --kafka-aws-region must be given together"
    if bool(options["ssl_cert"]) != bool(options["ssl_key"]):
        yield "--kafka-ssl-cert and --kafka-ssl-key must be given together"
    for name in _SSL_FILES:
        file: Path | None = options[name]
        if file and not file.is_file():
            yield f"--kafka-{name.replace('_', '-')}: {str(file)!r} is not a file"
    if not options["schema_registry_url"]:
        for name in ("username", "password"):
            if options[f"schema_registry_{name}"]:
                yield f"--kafka-schema-registry-{name} needs --kafka-schema-registry-url"


def _wrong_topics(options: Mapping[str, Any]) -> Iterator[str]:
    for topic in (options["routing"] or {}).values():
        if not TOPIC.fullmatch(topic):
            yield f"--kafka-topic-routing: expected {TOPIC_TAKES}, got {topic!r}"
    for name in ("topic-partitions", "topic-replication"):
        is_given = options[name.replace("-", "_")] is not None
        if options["create_topics"] and not is_given:
            yield f"--kafka-{name} is required by --kafka-create-topics"
        if is_given and not options["create_topics"]:
            yield f"--kafka-{name} needs --kafka-create-topics"
    if options["headers"] == "none":
        for name in ("static-headers", "meta-headers-prefix", "cloudevents"):
            if options[name.replace("-", "_")]:
                yield f"--kafka-{name} has no effect with --kafka-headers none; remove one of them"


def _wrong_extras(options: Mapping[str, Any]) -> Iterator[str]:
    if options["acks"] != "all" and options["idempotence"]:
        yield f"--kafka-idempotence needs --kafka-acks all, not {options['acks']}"
    for name, value in (options["option"] or {}).items():
        if name in _OWN_SETTINGS:
            yield f"--kafka-option: {name} has an option of its own, {_OWN_SETTINGS[name]}"
        elif name in _HELD_SETTINGS:
            yield f"--kafka-option: {name} can't be set: {_HELD_SETTINGS[name]}"
        elif name in _IN_FLIGHT_SETTINGS and not _is_idempotent(options) and value != "1":
            yield f"--kafka-option: {name} must be 1 without --kafka-idempotence, as later records would overtake a retry; got {value}"
        elif name == "partitioner" and value not in _KEYED_PARTITIONERS:
            yield f"--kafka-option: partitioner must keep a key in its partition: expected {', '.join(_KEYED_PARTITIONERS)}, got {value}"


class MskToken:
    """The token that MSK takes for a password, signed with the credentials of the usual AWS chain."""

    def __init__(self, region: str) -> None:
        self._region = region

    def __call__(self, _: str = "") -> tuple[str, float]:
        """The token, and until when it holds; librdkafka asks in a thread of its own, at the start and before it expires."""
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # type: ignore[import-untyped]

        token, expires_ms = MSKAuthTokenProvider.generate_auth_token(self._region)
        return token, expires_ms / 1000

    def verify(self) -> None:
        """Raises where no token can be made; librdkafka would wait for one."""
        try:
            self()
        except Exception as error:  # whatever of AWS it is
            raise TerminalDeliveryError(f"no token for --kafka-sasl-mechanism aws-msk-iam could be signed: {error}") from None


def secrets_of(options: Mapping[str, Any]) -> list[str]:
    """The texts that no sentence may hold."""
    found = [options[name] for name in ("ssl_key_password", "sasl_password", "schema_registry_password")]
    extras: Mapping[str, str] = options["option"] or {}
    found += [value for name, value in extras.items() if re.search(r"password|secret|token|\bkey\b|\bpem\b|\.config$", name)]
    return [secret for secret in found if secret]
