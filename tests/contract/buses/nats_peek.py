"""A NATS client of the tests' own, on a bare socket: manages streams and reads them back without the library that the bus uses."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from tests.contract.bus_under_test import Delivered

PAGE = 500


class NatsPeek:
    """One connection. The server may answer requests that were sent together in any order."""

    def __init__(self, port: int, **login: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._file = self._socket.makefile("rb")
        options = {"verbose": False, "headers": True, "no_responders": True, **login}
        self._file.readline()
        # Its own: an answer to a call of another client must not be taken for one of ours.
        self._inbox = f"_INBOX.{uuid4().hex}"
        self._socket.sendall(f"CONNECT {json.dumps(options)}\r\nSUB {self._inbox} 1\r\n".encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, subject: str, **body: Any) -> dict[str, Any]:
        """One call of the JetStream API."""
        (answer,) = self.ask_all([(subject, body)])
        return answer

    def ask_all(self, calls: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        """Many calls at once."""
        lines = []
        for subject, body in calls:
            content = json.dumps(body).encode()
            lines.append(f"PUB $JS.API.{subject} {self._inbox} {len(content)}\r\n".encode() + content + b"\r\n")
        answers: list[dict[str, Any]] = []
        for start in range(0, len(lines), PAGE):
            chunk = lines[start : start + PAGE]
            self._socket.sendall(b"".join(chunk))
            answers.extend(json.loads(self.next_message()[1]) for _ in chunk)
        return answers

    def subscribe(self, subject: str) -> None:
        """Has further messages come, by `next_message`; returns when the server knows."""
        self._socket.sendall(f"SUB {subject} 2\r\nPING\r\n".encode())
        while self._file.readline() != b"PONG\r\n":
            pass

    def next_message(self) -> tuple[str, bytes]:
        """Subject and content of the next message, without its headers."""
        while True:
            words = self._file.readline().split()
            if not words:
                raise ConnectionError("the server closed the connection")
            if words[0] == b"PING":
                self._socket.sendall(b"PONG\r\n")
            elif words[0] in (b"MSG", b"HMSG"):
                header_bytes = int(words[-2]) if words[0] == b"HMSG" else 0
                content = self._file.read(int(words[-1]) + 2)[:-2]
                return words[1].decode(), content[header_bytes:]

    def make_stream(self, name: str, subjects: list[str], **config: Any) -> dict[str, Any]:
        """Made, or changed."""
        settings = {"name": name, "subjects": subjects, "storage": "file", "num_replicas": 1, "allow_batched": True, **config}
        answer = self.ask(f"STREAM.CREATE.{name}", **settings)
        return answer if "error" not in answer else self.ask(f"STREAM.UPDATE.{name}", **settings)

    def read_all(self, *streams: str) -> list[Delivered]:
        """Every record of these streams, or of all, in the order in which each stored them."""
        return list(self.each_record(*streams))

    def each_record(self, *streams: str) -> Iterator[Delivered]:
        """The same, a page at a time."""
        for name in streams or self.ask("STREAM.NAMES").get("streams") or []:
            state = self.ask(f"STREAM.INFO.{name}")["state"]
            for start in range(state["first_seq"], state["last_seq"] + 1, PAGE):
                numbers = range(start, min(start + PAGE, state["last_seq"] + 1))
                answers = self.ask_all([(f"STREAM.MSG.GET.{name}", {"seq": number}) for number in numbers])
                messages = [answer["message"] for answer in answers if "message" in answer]
                yield from map(_to_delivered, sorted(messages, key=lambda message: message["seq"]))


def _to_delivered(message: dict[str, Any]) -> Delivered:
    lines = base64.b64decode(message.get("hdrs", "")).decode().split("\r\n")[1:]
    headers = dict(line.split(": ", 1) for line in lines if line)
    return Delivered(message["subject"], "", headers, base64.b64decode(message.get("data", "")))
