"""Fixtures of all tests: the conformance vectors and the real servers.

Invariant: a server that is missing fails the test; nothing but absent vectors skips one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest

from tests.servers.elasticmq import ElasticMqServer
from tests.servers.kafka import KafkaServer
from tests.servers.kinesalite import KinesaliteServer
from tests.servers.nats import NatsServer
from tests.servers.process import ROOT, TOOLS, ServerMissingError, ServerProcess
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.servers.seaweedfs import SeaweedServer

VECTORS = ROOT.parent / "shared" / "vectors"

Server = TypeVar("Server", bound=ServerProcess)

# Spark runs on the Java that the set-up found, as the servers do.
if (TOOLS / "java").exists():
    os.environ["JAVA_HOME"] = str((TOOLS / "java").resolve())


# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("house", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("house")


@pytest.fixture(scope="session")
def vectors() -> Path:
    """The folder of the conformance vectors, which lies beside the repository."""
    if not VECTORS.is_dir():
        pytest.skip("the conformance vectors are not here (../shared/vectors)")
    return VECTORS


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    yield from running(KafkaServer(tmp_path_factory.mktemp("servers") / "kafka"))


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    yield from running(RedisServer(tmp_path_factory.mktemp("servers") / "redis"))


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    yield from running(NatsServer(tmp_path_factory.mktemp("servers") / "nats"))


@pytest.fixture(scope="session")
def elasticmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ElasticMqServer]:
    yield from running(ElasticMqServer(tmp_path_factory.mktemp("servers") / "elasticmq"))


@pytest.fixture(scope="session")
def kinesalite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KinesaliteServer]:
    yield from running(KinesaliteServer(tmp_path_factory.mktemp("servers") / "kinesalite"))


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    yield from running(SeaweedServer(tmp_path_factory.mktemp("servers") / "seaweed"))


@pytest.fixture(scope="session")
def bucket(seaweed: SeaweedServer) -> str:
    """One for all tests, of which each has a place of its own in it."""
    return seaweed.create_bucket("lakes")


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Callable[[type[Server]], Server]]:
    """Starts a server for one test alone, which may kill, pause and restart it."""
    servers: list[ServerProcess] = []

    def start(kind: type[Server]) -> Server:
        server = kind(tmp_path / f"{kind.__name__}-{len(servers)}")
        servers.append(server)
        started(server)
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def faulty_network() -> Iterator[Callable[[int], FaultProxy]]:
    """Puts a proxy in front of a port; the client of the test connects to the proxy."""
    proxies: list[FaultProxy] = []

    def before(port: int) -> FaultProxy:
        proxies.append(FaultProxy(port).start())
        return proxies[-1]

    yield before
    for proxy in proxies:
        proxy.stop()


def running(server: Server) -> Iterator[Server]:
    started(server)
    yield server
    server.stop()


def started(server: ServerProcess) -> None:
    try:
        server.start()
    except ServerMissingError as error:
        pytest.fail(str(error), pytrace=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", action="store_true", help="take the screenshots that the documents show")
