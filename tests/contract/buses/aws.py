"""What stands between the bus and an emulator of Amazon's: a faulty network, and a service that fails.

That of Kinesis keeps its streams, and is killed and started again. That of SQS can keep its messages, but not their order in a group,
which is what the suite looks at: instead of it, the way to it is killed, and `test_sqs_bus` has a test of its own that kills it.
"""

from __future__ import annotations

import ssl
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar
from uuid import uuid4

from tests.contract.bus_under_test import ALL_FAULTS, BusUnderTest, Fault
from tests.servers.aws_faults import AwsFaults, Body
from tests.servers.process import ServerProcess
from tests.servers.proxy import FaultProxy

# Longer than a busy machine takes for an answer.
REQUEST_TIMEOUT_S = 3.0
# Of the entries of a call; never so many that one fails more often than it is tried.
SOME = 0.2
CREDENTIALS = {"access-key": "AKIATEST", "secret-key": "s3cr3t/key", "session-token": "t0ken=="}


class AwsUnderTest(BusUnderTest):
    """The bus talks to `network`, which forwards to `service`, which forwards to the emulator."""

    faults: ClassVar[Sequence[Fault]] = ALL_FAULTS
    cannot: ClassVar[dict[Fault, str]] = {}
    own_faults: ClassVar[Sequence[Fault]] = ("throttle", "error", "some", "expired")
    keeps_order: ClassVar[bool]
    """Whether the emulator has everything as it was when it was killed."""

    def __init__(self, folder: Path, emulator: ServerProcess, tls: ssl.SSLContext | None = None) -> None:
        """An emulator that does not run yet is its own: it starts it, and stops it at the end."""
        super().__init__(folder)
        self._emulator = emulator
        self._is_own = not emulator.is_running
        if self._is_own:
            emulator.start()
        self.service = AwsFaults(emulator.port, tls).start()
        self.network = FaultProxy(self.service.port).start()
        self._scheme = "http" if tls is None else "https"
        self._suffix = uuid4().hex[:8]
        self._dice = Random(1)
        self.destinations: list[str] = []

    @property
    def url(self) -> str:
        """Where the bus finds the service."""
        return f"{self._scheme}://{self.network.address}"

    def unique(self, name: str) -> str:
        """A name that no other test has."""
        return f"{name}-{self._suffix}"

    def keywords(self) -> dict[str, Any]:
        return {"region": "us-east-1", "endpoint-url": self.url, "request-timeout": REQUEST_TIMEOUT_S, **CREDENTIALS}

    @abstractmethod
    def goes_to(self, body: Body, destination: str) -> bool:
        """Whether a call is about this destination."""

    def inject(self, fault: Fault) -> None:
        if fault in ("gone", "restart"):
            if self.keeps_order:
                self._emulator.kill()
            self.network.refuse()
            if fault == "restart":
                time.sleep(0.3)
                self.heal()
        elif fault == "hang":
            self.network.hold()
            time.sleep(REQUEST_TIMEOUT_S * 1.1)
        elif fault == "cut":
            self.network.reset()
        elif fault == "throttle":
            self.service.fail("ThrottlingException", message="Rate exceeded")
        elif fault == "error":
            self.service.fail("InternalFailure", 500)
        elif fault == "some":
            self.service.refuse("InternalFailure", only=lambda entry: self._dice.random() < SOME)
        elif fault == "expired":
            self.service.fail("ExpiredTokenException", message="The security token included in the request is expired")
        else:
            refused = self.destinations[-1]
            self.service.fail(
                "ThrottlingException", message="Rate exceeded", only=lambda asked: self.goes_to(asked.body, refused)
            )

    def heal(self) -> None:
        if not self._emulator.is_running:
            self._emulator.start()
        self.service.heal()
        self.network.heal()

    def close(self) -> None:
        self.network.stop()
        self.service.stop()
        if self._is_own:
            self._emulator.stop()
        elif not self._emulator.is_running:
            self._emulator.start()  # of a test that failed: the next one has the same
