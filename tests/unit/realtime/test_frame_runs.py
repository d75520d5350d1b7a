"""Frames in runs are the frames that aiohttp's own parser gives, wherever a read of the socket cut them."""

from __future__ import annotations

import asyncio
from struct import pack
from typing import Any

import aiohttp
import aiohttp.web
from aiohttp._websocket.reader import WebSocketDataQueue, WebSocketReader
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.realtime.backoff import Timings
from tardis_machine.realtime.connection import open_session
from tests.compiled_or_not import import_as_python, import_compiled

(compiled,), (python,) = (load("tardis_machine.realtime.frame_runs") for load in (import_compiled, import_as_python))

LIMIT = 1 << 20
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def frame(kind: int, payload: bytes, first: int = 0x80) -> bytes:
    size = len(payload)
    if size < 126:
        return pack("!BB", first | kind, size) + payload
    return pack("!BBH" if size < 1 << 16 else "!BBQ", first | kind, 126 if size < 1 << 16 else 127, size) + payload


class Protocol:
    """What a queue pauses; this one is never read from while it is filled."""

    _reading_paused = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def received(runs: Any, reads: list[bytes], limit: int = LIMIT) -> list[tuple[Any, Any]]:
    """Each message with its kind, and at the end what went wrong."""

    async def take() -> list[tuple[Any, Any]]:
        queue = WebSocketDataQueue(Protocol(), 1 << 30, loop=asyncio.get_running_loop())  # type: ignore[arg-type]
        parser = runs.runs_before(WebSocketReader(queue, limit, False, False), queue, limit)
        for read in reads:
            if parser.feed_data(read)[0]:
                break
        found: list[tuple[Any, Any]] = []
        while queue._buffer:
            message = await queue.read()
            found += [(message.type, data) for data in (message.data if isinstance(message.data, list) else [message.data])]
        if queue.exception() is not None:
            found.append(("error", str(queue.exception())))
        return found

    return asyncio.run(take())


plain = st.builds(frame, st.sampled_from([TEXT, TEXT, TEXT, BINARY]), st.binary(max_size=300))
large = st.builds(lambda kind, size: frame(kind, b"x" * size), st.sampled_from([TEXT, BINARY]), st.integers(65_000, 66_000))
small = st.builds(frame, st.sampled_from([PING, PONG]), st.binary(max_size=125))
fragments = st.builds(
    lambda parts: b"".join(
        frame(0 if place else TEXT, part, 0x80 if place == len(parts) - 1 else 0) for place, part in enumerate(parts)
    ),
    st.lists(st.binary(max_size=9), min_size=2, max_size=3),
)
ends = st.sampled_from([frame(CLOSE, b""), frame(CLOSE, pack("!H", 1001) + b"bye"), frame(5, b""), frame(TEXT, b"", 0xC0)])


@given(st.lists(st.one_of(plain, plain, small, fragments, large), max_size=12), st.one_of(st.just(b""), ends), st.data())
def test_any_frames_cut_anywhere(frames: list[bytes], end: bytes, data: st.DataObject) -> None:
    sent = b"".join([*frames, end, frame(TEXT, b"behind")])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    reads = [sent[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert received(compiled, reads) == received(python, reads)


def test_a_frame_longer_than_the_limit_is_refused() -> None:
    sent = frame(TEXT, b"short") + frame(TEXT, b"x" * 200)
    assert received(compiled, [sent], 100) == received(python, [sent], 100)
    assert received(compiled, [sent], 100)[-1][0] == "error"


def test_what_one_read_brought_is_one_message() -> None:
    async def take() -> list[Any]:
        queue = WebSocketDataQueue(Protocol(), 1 << 30, loop=asyncio.get_running_loop())  # type: ignore[arg-type]
        parser = compiled.runs_before(WebSocketReader(queue, LIMIT, False, False), queue, LIMIT)
        parser.feed_data(frame(TEXT, b"a") + frame(TEXT, b"b") + frame(TEXT, b"c")[:2])
        parser.feed_data(b"c" + frame(TEXT, b"d"))
        return [(await queue.read()).data for _ in range(2)]

    assert asyncio.run(take()) == [[b"a", b"b"], [b"c", b"d"]]


def test_connections_receive_in_runs() -> None:
    """aiohttp has a parser set where we put ours before it."""

    async def take() -> Any:
        async def serve(request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
            socket = aiohttp.web.WebSocketResponse()
            await socket.prepare(request)
            assert request.transport is not None
            request.transport.write(frame(TEXT, b"a") + frame(TEXT, b"b"))
            await socket.receive()
            return socket

        runner = aiohttp.web.ServerRunner(aiohttp.web.Server(serve))
        await runner.setup()
        site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        try:
            async with (
                open_session({"bitmex": "ws://x"}, Timings()) as session,
                session.ws_connect(f"ws://{host}:{port}/", decode_text=False) as socket,
            ):
                return (await socket.receive()).data
        finally:
            await runner.cleanup()

    assert asyncio.run(take()) == [b"a", b"b"]
