"""Questions to a Kafka cluster, and what its errors mean.

Invariant: an error is Terminal only where it would meet the same record, or the same start, again; in doubt it is Transient.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ....errors import DeliveryError, TerminalDeliveryError, TransientDeliveryError
from .settings import MskToken, secrets_of, to_client_settings

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient

__all__ = ["PATIENCE_S", "Asking", "Cluster", "is_terminal"]

T = TypeVar("T")

_REQUEST_TIMEOUT_S = 5.0
_NEW_TOPIC_S = 10.0
PATIENCE_S = 1.0
"""How long a topic may be unknown that somebody made a moment ago."""

_TERMINAL = frozenset(
    (
        "MSG_SIZE_TOO_LARGE",
        "RECORD_LIST_TOO_LARGE",
        "INVALID_MSG_SIZE",
        "INVALID_RECORD",
        "INVALID_TIMESTAMP",
        "INVALID_REQUIRED_ACKS",
        "UNSUPPORTED_COMPRESSION_TYPE",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "UNSUPPORTED_VERSION",
        "POLICY_VIOLATION",
        "TOPIC_EXCEPTION",
        "TOPIC_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "SECURITY_DISABLED",
        "_INVALID_ARG",
        "_BAD_COMPRESSION",
        "_UNSUPPORTED_FEATURE",
    )
)
# A broker that has just started may not know a topic yet: only when the cluster says so is it missing.
_UNKNOWN_TOPIC = frozenset(("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID"))
# What a client that connects hears of, and what to look at then; it would try again for ever.
_NOT_LET_IN: Mapping[str, str] = {
    "_AUTHENTICATION": "see --kafka-sasl-mechanism, --kafka-sasl-username and --kafka-sasl-password",
    "SASL_AUTHENTICATION_FAILED": "see --kafka-sasl-username and --kafka-sasl-password",
    "UNSUPPORTED_SASL_MECHANISM": "see --kafka-sasl-mechanism",
    "_SSL": "see --kafka-ssl, --kafka-ssl-ca and --kafka-ssl-cert",
}


def is_terminal(name: str) -> bool:
    """Whether the error of that name (`MSG_SIZE_TOO_LARGE`) would meet the same record again; in doubt it would not."""
    return name in _TERMINAL


class Cluster:
    """A Kafka cluster as the clients of one bus see it."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.brokers = ", ".join(options["brokers"])
        self._settings = to_client_settings(options)
        self._extras: Mapping[str, str] = options["option"] or {}
        self._secrets = secrets_of(options)

    def redact(self, sentence: str) -> str:
        """The sentence without secrets, whoever wrote it."""
        for secret in self._secrets:
            sentence = sentence.replace(secret, "***")
        return sentence

    def start(self, make: Callable[[Mapping[str, Any]], T]) -> T:
        """Makes a client from librdkafka's settings; what it says of them is a Terminal error."""
        from confluent_kafka import KafkaException

        token = self._settings.get("oauth_cb")
        if isinstance(token, MskToken):
            token.verify()
        try:
            return make(self._settings)
        except (KafkaException, TypeError, ValueError) as error:
            reason = self._blame_extras() or _reason(error)
            raise TerminalDeliveryError(self.redact(f"the Kafka client can't start: {reason}")) from None

    def _blame_extras(self) -> str | None:
        """librdkafka may call a setting by another name than the user did: each is tried alone."""
        from confluent_kafka import KafkaException, Producer

        for name, value in self._extras.items():
            try:
                Producer({name: value, "log_level": 0})
            except (KafkaException, TypeError, ValueError) as error:
                return f"--kafka-option {name}={value}: {_reason(error)}"
        return None

    def find_topics(self, topics: Sequence[str]) -> dict[str, int | None]:
        """How many partitions each topic has, None where it is missing; nothing where the cluster does not say."""
        try:
            with Asking(self) as asking:
                return asking.describe_topics(topics, PATIENCE_S)
        except DeliveryError:
            return {}


def _reason(error: Exception) -> str:
    """What a client's exception says, without its class and code."""
    said = error.args[0] if error.args else error
    return str(said.str() if hasattr(said, "str") else said)


def _kind(error: KafkaError) -> str:
    """An error's name, but that a certificate which is not believed is no trouble of the network, whoever of the client notes it."""
    return "_SSL" if "certificate verify failed" in error.str() else error.name()


class Asking:
    """An admin client for a few questions to a cluster. It blocks, so it is for threads; it raises DeliveryErrors."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._errors: list[KafkaError] = []

    def __enter__(self) -> Asking:
        from confluent_kafka.admin import AdminClient

        callbacks: dict[str, Any] = {"error_cb": self._errors.append}
        self._admin: AdminClient = self._cluster.start(lambda settings: AdminClient({**settings, **callbacks}))
        return self

    def __exit__(self, *_: object) -> None:
        del self._admin  # which ends its threads

    def describe_topics(self, topics: Sequence[str], patience_s: float = 0.0) -> dict[str, int | None]:
        """How many partitions each has, None where it is missing; raises where one may not be written.

        With patience: a broker may not have heard yet of one that was made a moment ago.
        """
        from confluent_kafka import TopicCollection

        deadline = time.monotonic() + patience_s
        while True:
            asked = self._admin.describe_topics(
                TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=_REQUEST_TIMEOUT_S
            )
            found = {topic: self._count_partitions(topic, answer) for topic, answer in asked.items()}
            if None not in found.values() or time.monotonic() >= deadline:
                return found
            time.sleep(0.1)

    def _count_partitions(self, topic: str, answer: Future[Any]) -> int | None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

        try:
            described = self._wait(answer)
        except KafkaException as error:
            if error.args[0].name() in _UNKNOWN_TOPIC:
                return None
            raise self._to_error(error.args[0], f"can't describe topic {topic}") from None
        allowed = described.authorized_operations
        if allowed and AclOperation.WRITE not in allowed:
            raise TerminalDeliveryError(f"topic {topic} may not be written with these credentials")
        return len(described.partitions)

    def create_topics(self, topics: Sequence[str], partitions: int, replication: int) -> dict[str, int | None]:
        """Makes topics and describes them; one that another client has made meanwhile is as good."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        asked = self._admin.create_topics(
            [NewTopic(topic, partitions, replication) for topic in topics], request_timeout=_REQUEST_TIMEOUT_S
        )
        for topic, answer in asked.items():
            try:
                self._wait(answer)
            except KafkaException as error:
                if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                    raise self._to_error(error.args[0], f"can't create topic {topic} (--kafka-create-topics)") from None
        made = self.describe_topics(topics, _NEW_TOPIC_S)
        if None in made.values():
            raise TransientDeliveryError(f"Kafka at {self._cluster.brokers} has created topics that it does not know yet")
        return made

    def message_bytes(self, topics: Sequence[str]) -> list[int]:
        """The largest batch that each topic takes, as far as this client may know."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        sizes = []
        for answer in self._admin.describe_configs(resources, request_timeout=_REQUEST_TIMEOUT_S).values():
            try:
                sizes.append(int(self._wait(answer)["max.message.bytes"].value))
            except KafkaException as error:
                if not error.args[0].name().endswith("AUTHORIZATION_FAILED"):
                    raise self._to_error(error.args[0], "can't describe the limits of its topics") from None
        return sizes

    def _wait(self, answer: Future[T]) -> T:
        """The answer; raises at once where the client hears that it will not be let in, or that nobody is there."""
        while not answer.done():
            self._admin.poll(0.05)
            names = [_kind(error) for error in self._errors]
            for name, error in zip(names, self._errors, strict=True):
                if name in _NOT_LET_IN:
                    said = f"Kafka at {self._cluster.brokers} does not let this client in: {error.str()}; {_NOT_LET_IN[name]}"
                    raise TerminalDeliveryError(self._cluster.redact(said))
            if "_ALL_BROKERS_DOWN" in names:
                # The errors beside that one say why.
                reasons = [error for name, error in zip(names, self._errors, strict=True) if name != "_ALL_BROKERS_DOWN"]
                raise self._to_error(reasons[0] if reasons else self._errors[0], "can't be reached")
        return answer.result()

    def _to_error(self, error: KafkaError, what: str) -> DeliveryError:
        sentence = self._cluster.redact(f"Kafka at {self._cluster.brokers} {what}: {error.str()}")
        is_refusal = is_terminal(error.name()) or error.name() in ("INVALID_REPLICATION_FACTOR", "INVALID_PARTITIONS")
        return TerminalDeliveryError(sentence) if is_refusal else TransientDeliveryError(sentence)
