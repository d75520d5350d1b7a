"""The Kafka bus against a broker that demands TLS, client certificates and passwords; and what it says of those."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from tardis_machine.errors import TerminalDeliveryError
from tardis_machine.eventbus import plan_bus
from tardis_machine.eventbus.buses.kafka.settings import to_client_settings
from tardis_machine.eventbus.publisher import BusPlan, Publisher
from tardis_machine.settings import from_keywords
from tests.contract.buses.kafka import read_topic
from tests.contract.conformance import Session
from tests.contract.sample_messages import sample_messages
from tests.servers.kafka import KafkaServer

PASSWORD = "correct-horse:battery"
KEY_PASSWORD = "st@ple"


class Certificate(NamedTuple):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def key_pem(self, encryption: KeySerializationEncryption | None = None) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())


def make_certificate(name: str, issuer: Certificate | None = None) -> Certificate:
    """One that signs itself is an authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
    )
    return Certificate(builder.sign(issuer.key if issuer else key, hashes.SHA256()), key)


class SecureKafka(NamedTuple):
    """A broker, its addresses for certificates and for passwords, and the files of a client."""

    server: KafkaServer
    by_certificate: str
    by_password: str
    ca: Path
    other_ca: Path
    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    folder = tmp_path_factory.mktemp("secure")
    authority = make_certificate("authority")
    broker, client = make_certificate("broker", authority), make_certificate("client", authority)
    files = {
        "ca.pem": authority.pem(),
        "other_ca.pem": make_certificate("another authority").pem(),
        "broker.pem": broker.key_pem() + broker.pem(),
        "client.pem": client.pem(),
        "client.key": client.key_pem(BestAvailableEncryption(KEY_PASSWORD.encode())),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    modules = "org.apache.kafka.common.security"
    properties = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.certified.ssl.client.auth": "required",
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.login.plain.sasl.jaas.config": f'{modules}.plain.PlainLoginModule required user_alice="{PASSWORD}";',
        "listener.name.login.scram-sha-256.sasl.jaas.config": f"{modules}.scram.ScramLoginModule required;",
        "listener.name.login.scram-sha-512.sasl.jaas.config": f"{modules}.scram.ScramLoginModule required;",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
    }
    server = KafkaServer(folder / "server", properties)
    by_certificate, by_password = server.add_listener("CERTIFIED", "SSL"), server.add_listener("LOGIN", "SASL_SSL")
    server.scram_users = [f"SCRAM-SHA-{bits}=[name=bob,password={PASSWORD}]" for bits in (256, 512)]
    with server:
        admin = AdminClient({"bootstrap.servers": server.address, "log_level": 0})
        for answer in admin.create_topics([NewTopic(topic, 1, 1) for topic in ("events", "hidden", "read-only")]).values():
            answer.result(30)
        operations = {"hidden": (), "read-only": (AclOperation.DESCRIBE, AclOperation.READ)}
        everyone = [
            AclBinding(
                ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:alice", "*", operation, AclPermissionType.ALLOW
            )
            for topic, allowed in operations.items()
            for operation in allowed
        ]
        nobody = AclBinding(
            ResourceType.TOPIC, "hidden", ResourcePatternType.LITERAL, "User:x", "*", AclOperation.ALL, AclPermissionType.ALLOW
        )
        for answer in admin.create_acls([*everyone, nobody]).values():
            answer.result(30)
        names = ("ca.pem", "other_ca.pem", "client.pem", "client.key")
        yield SecureKafka(server, by_certificate, by_password, *(folder / name for name in names))


def make_plan(folder: Path, **keywords: Any) -> BusPlan:
    given = {"topic": "events", "dead-letter-dir": folder / "dead", **keywords}
    return plan_bus("kafka", from_keywords({"kafka": given}, {}).for_bus("kafka"))


def with_certificate(secure: SecureKafka) -> dict[str, Any]:
    return {
        "brokers": secure.by_certificate,
        "ssl-ca": secure.ca,
        "ssl-cert": secure.certificate,
        "ssl-key": secure.key,
        "ssl-key-password": KEY_PASSWORD,
    }


def with_password(secure: SecureKafka, mechanism: str, user: str = "bob") -> dict[str, Any]:
    login = {"sasl-mechanism": mechanism, "sasl-username": user, "sasl-password": PASSWORD}
    return {"brokers": secure.by_password, "ssl-ca": secure.ca, **login}


@pytest.mark.parametrize("way", ["certificate", "plain", "scram-sha-256", "scram-512"])
async def test_a_broker_that_demands_it_lets_the_bus_in(secure: SecureKafka, tmp_path: Path, way: str) -> None:
    if way == "certificate":
        keywords = with_certificate(secure)
    else:
        keywords = with_password(secure, way, "alice" if way == "plain" else "bob")
    before = len(list(read_topic(secure.server.address, "events")))
    publisher = Publisher([make_plan(tmp_path, **keywords)], spool_dir=tmp_path / "spool")
    await publisher.start()
    await publisher.publish(Session("s-1").encode(sample_messages(48)))
    (receipt,) = await publisher.close(60)
    assert receipt.is_complete
    assert len(list(read_topic(secure.server.address, "events"))) == before + 49


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"sasl-password": "wr0ng-secret"}, "does not let this client in: .*--kafka-sasl-password"),
        ({"sasl-mechanism": "plain"}, "does not let this client in: .*--kafka-sasl-username"),
        ({"ssl-ca": "other_ca"}, "does not let this client in: .*certificate.*--kafka-ssl-ca"),
        ({"topic": "hidden"}, "can't describe topic hidden: .*authorization failed"),
        ({"topic": "read-only", "sasl-mechanism": "plain", "sasl-username": "alice"}, "topic read-only may not be written"),
    ],
)
async def test_who_is_not_let_in_hears_why_at_the_start(
    secure: SecureKafka, tmp_path: Path, wrong: Mapping[str, Any], says: str
) -> None:
    keywords = with_password(secure, "scram-512") | wrong
    if wrong.get("ssl-ca"):
        keywords["ssl-ca"] = secure.other_ca
    plan = make_plan(tmp_path, **keywords)
    with pytest.raises(TerminalDeliveryError, match=says) as caught:
        await plan.bus.connect()
    await plan.bus.close()
    assert PASSWORD not in str(caught.value)
    assert "wr0ng-secret" not in str(caught.value)


async def test_a_key_that_does_not_open_is_refused_without_its_password(secure: SecureKafka, tmp_path: Path) -> None:
    plan = make_plan(tmp_path, **with_certificate(secure) | {"ssl-key-password": "n0t-it"})
    with pytest.raises(TerminalDeliveryError, match=r"the Kafka client can't start: .*ssl\.key") as caught:
        await plan.bus.connect()
    assert "n0t-it" not in str(caught.value)
    assert "n0t-it" not in repr(plan.bus)


def for_msk(folder: Path) -> dict[str, Any]:
    keywords = {"brokers": "b-1.msk.test", "sasl-mechanism": "aws-msk-iam", "aws-region": "eu-west-1", "topic": "t"}
    return from_keywords({"kafka": keywords | {"dead-letter-dir": folder}}, {}).for_bus("kafka")


async def test_msk_gets_a_token_that_is_signed_with_the_credentials_of_the_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import base64
    import time

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-real-secret")
    settings = to_client_settings(for_msk(tmp_path))
    assert (settings["security.protocol"], settings["sasl.mechanisms"]) == ("SASL_SSL", "OAUTHBEARER")
    token, expires_at = settings["oauth_cb"]("")
    assert 60 < expires_at - time.time() <= 900
    signed = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    asked = parse_qs(signed.query)
    assert signed.hostname == "kafka.eu-west-1.amazonaws.com"
    assert asked["Action"] == ["kafka-cluster:Connect"]
    assert asked["X-Amz-Credential"][0].startswith("AKIDEXAMPLE/")
    assert "not-a-real-secret" not in signed.geturl()


async def test_without_credentials_the_start_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    bus = plan_bus("kafka", for_msk(tmp_path)).bus
    with pytest.raises(TerminalDeliveryError, match="no token for --kafka-sasl-mechanism aws-msk-iam could be signed"):
        await bus.connect()
    await bus.close()
