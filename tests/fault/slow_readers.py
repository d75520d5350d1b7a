"""Clients in great number that each ask for much and hardly read: what stalls must cost little, and hold up nobody.

They ask for recorded lines, which are not published: what they leave unread is no event. One thread serves them all.

Invariant: as many as asked for are connected, but for those whose connection the machine or a fault has just ended.
"""

from __future__ import annotations

import json
import resource
import socket
import threading
from contextlib import suppress

from tests.fault.traffic import raw_options

__all__ = ["SlowReaders"]

_RECEIVE_BUFFER_BYTES = 4096
_BYTES_A_READ = 1024
_PAUSE_S = 0.05
_TURN = 20
"""How many connect, and how many read, before the next pause."""


class SlowReaders:
    """`start` them, and `stop` them."""

    def __init__(self, port: int, count: int, minutes: int) -> None:
        self._port = port
        self._count = count
        body = json.dumps(raw_options(minutes))
        self._request = f"POST /replay HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        self._sockets: list[socket.socket] = []
        self._is_new = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.most = 0
        """Of them at a time that have been answered and were still being served."""
        self.received_bytes = 0

    def start(self) -> None:
        """They come in turns."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * self._count + 512)), hard))
        self._thread.start()

    def come_again(self) -> None:
        """They hang up, and others come: who reads slowly would not see for long that a machine was killed."""
        self._is_new = True

    def stop(self) -> None:
        """They hang up."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        answered: set[socket.socket] = set()
        place = 0
        try:
            while not self._over.wait(_PAUSE_S):
                if self._is_new:
                    self._is_new = False
                    self._hang_up(answered)
                for _ in range(min(_TURN, self._count - len(self._sockets))):
                    with suppress(OSError):
                        self._connect()
                for _ in range(min(_TURN, len(self._sockets))):
                    place = (place + 1) % len(self._sockets)
                    self._read(place, answered)
                    if not self._sockets:
                        break
                self.most = max(self.most, len(answered))
        finally:
            self._hang_up(answered)

    def _hang_up(self, answered: set[socket.socket]) -> None:
        while self._sockets:
            self._sockets.pop().close()
        answered.clear()

    def _connect(self) -> None:
        each = socket.socket()
        try:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
            each.settimeout(1.0)
            each.connect(("127.0.0.1", self._port))
            each.sendall(self._request)
            each.setblocking(False)
        except OSError:
            each.close()
            raise
        self._sockets.append(each)

    def _read(self, place: int, answered: set[socket.socket]) -> None:
        each = self._sockets[place]
        try:
            data = each.recv(_BYTES_A_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.received_bytes += len(data)
            answered.add(each)
            return
        # It has all, or was cut off: another takes its place.
        each.close()
        answered.discard(each)
        del self._sockets[place]
