"""The NATS bus in front of a nats-server of its own, behind a network that can be cut, read back over a bare socket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tests.contract.bus_under_test import ALL_FAULTS, BusUnderTest, Delivered, Fault, Misconfiguration
from tests.contract.buses.nats_peek import NatsPeek
from tests.servers.nats import NatsServer
from tests.servers.proxy import FaultProxy

SUBJECT = "market.all"


class NatsUnderTest(BusUnderTest):
    prefix = "nats"
    faults: ClassVar[Sequence[Fault]] = ALL_FAULTS
    cannot: ClassVar[dict[Fault, str]] = {}
    carries_key = False
    stream_config: ClassVar[dict[str, Any]] = {}
    """Of every stream that is made."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = NatsServer(folder / "nats").start()
        self._network = FaultProxy(self.server.port).start()
        # The stream that was made last is the one that can be made to refuse.
        self._made: list[tuple[str, str]] = []
        self._fault: Fault | None = None
        self._make("MARKET", SUBJECT)

    def _make(self, name: str, subject: str) -> None:
        with NatsPeek(self.server.port) as peek:
            answer = peek.make_stream(name, [subject], **self.stream_config)
        assert "error" not in answer, answer
        self._made.append((name, subject))

    def keywords(self) -> dict[str, Any]:
        return {"servers": [f"nats://{self._network.address}"], "subject": SUBJECT, "ack-timeout": "300ms"}

    def direct_keywords(self) -> dict[str, Any]:
        return {"servers": [self.server.url], "subject": SUBJECT}

    def destination_option(self) -> tuple[str, str]:
        return "subject-routing", SUBJECT

    def new_destination(self, name: str) -> str:
        self._make(name.upper(), f"market.{name}")
        return f"market.{name}"

    def read_back(self) -> list[Delivered]:
        return list(self.each_record())

    def each_record(self) -> Iterator[Delivered]:
        with NatsPeek(self.server.port) as peek:
            yield from peek.each_record()

    def inject(self, fault: Fault) -> None:
        self._fault = fault
        if fault == "gone":
            self.server.kill()
        elif fault == "restart":
            self.server.kill()
            self.server.start()
        elif fault == "hang":
            self.server.pause()
        elif fault == "cut":
            self._network.cut()
        else:
            self._limit_last(full=True)

    def heal(self) -> None:
        if self._fault == "gone":
            self.server.start()
        elif self._fault == "hang":
            self.server.resume()
        elif self._fault == "partial":
            self._limit_last(full=False)

    def _limit_last(self, *, full: bool) -> None:
        name, subject = self._made[-1]
        with NatsPeek(self.server.port) as peek:
            stored = peek.ask(f"STREAM.INFO.{name}")["state"]["messages"]
            limits = {"discard": "new", "max_msgs": stored} if full else {"discard": "new", "max_msgs": -1}
            answer = peek.make_stream(name, [subject], **(self.stream_config | limits))
        assert "error" not in answer, answer

    def misconfigurations(self) -> Sequence[Misconfiguration]:
        no_creds = self.folder / "no.creds"
        no_creds.write_text("nothing of the kind")
        return [
            Misconfiguration({"key-template": "{{symbl}}"}, r"\{\{symbl\}\}"),
            Misconfiguration({"subject": "market..all"}, "--nats-subject: 'market..all' has an empty token"),
            Misconfiguration({"subject": "market.>"}, "--nats-subject: 'market.>' has a wildcard"),
            Misconfiguration({"subject-template": "a b.{{symbol}}"}, "--nats-subject-template: .* has a space"),
            Misconfiguration({"subject-routing": "trade:$JS.x"}, "--nats-subject-routing: .* begins with"),
            Misconfiguration({"dead-letter-subject": "a..b"}, "--nats-dead-letter-subject: 'a..b' has an empty token"),
            Misconfiguration({"dead-letter-subject": "letters"}, "no stream of the NATS server has the subject letters"),
            Misconfiguration({"subject": "elsewhere"}, "no stream of the NATS server has the subject elsewhere"),
            Misconfiguration({"stream": "MARKET", "subject": "other"}, "MARKET has the subjects market.all, but not other"),
            Misconfiguration({"stream": "a.b"}, "the name of a stream can't have a space, dot"),
            Misconfiguration({"static-headers": "Nats-Rollup:all"}, "'Nats-Rollup' can't be the name"),
            Misconfiguration({"user": "me"}, "--nats-user and --nats-password must be given together"),
            Misconfiguration({"token": "t", "nkey": no_creds}, "--nats-token and --nats-nkey can't be combined"),
            Misconfiguration({"creds": no_creds}, "--nats-creds: .*no.creds' has no user JWT"),
            Misconfiguration({"core": True, "stream": "MARKET"}, "core NATS has no streams"),
            Misconfiguration({"tls": True}, "TLS is required, but the NATS server does not offer it"),
            Misconfiguration({"servers": "http://127.0.0.1"}, "expected nats://host:port or tls://host:port"),
        ]

    def close(self) -> None:
        self._network.stop()
        self.server.stop()
