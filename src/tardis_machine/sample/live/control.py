"""The simulated exchanges told and asked from another process, over HTTP.

GET  /control/urls                                     {"bitmex": "ws://…", "binance-rest": "http://…", …}
GET  /control/book?exchange=&symbol=[&channel=]        {"bids": [[price, amount], …], "asks": […], "positionUs": …}
GET  /control/connections?exchange=                    {"open": 1, "accepted": 3}
GET  /control/sent?exchange=[&last=]                   a line of JSON for each message
POST /control/misbehave?exchange=   a misbehaviour with its "kind"     {"connections": 1}
POST /control/recover?exchange=     POST /control/pause, /control/resume, /control/advance?ms=
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from ...errors import OptionsError
from .misbehaviour import Misbehaviour

if TYPE_CHECKING:
    from .server import SimulatedExchanges

__all__ = ["add_control_routes"]

_Answer = Callable[[web.Request], Awaitable[web.Response]]


def add_control_routes(app: web.Application, simulated: SimulatedExchanges) -> None:
    """Serves the routes above."""

    async def urls(request: web.Request) -> web.Response:
        return web.json_response(simulated.urls)

    async def book(request: web.Request) -> web.Response:
        symbol, channel = request.query["symbol"], request.query.get("channel")
        bids, asks = simulated.true_book(request.query["exchange"], symbol, channel)
        sides = {"bids": list(bids.items()), "asks": list(asks.items())}
        return web.json_response({**sides, "positionUs": simulated.clock.now_us})

    async def connections(request: web.Request) -> web.Response:
        opened = simulated.open_connections(request.query["exchange"])
        return web.json_response({"open": len(opened), "accepted": simulated.accepted})

    async def sent(request: web.Request) -> web.Response:
        exchange, last = request.query["exchange"], int(request.query.get("last", "1000"))
        messages = [each for each in simulated.sent if each.exchange == exchange][-last:]
        lines = [
            msgspec.json.encode(
                {
                    "connection": each.connection,
                    "sentNs": each.sent_ns,
                    "positionUs": each.position_us,
                    "message": each.message.decode(),
                }
            )
            for each in messages
        ]
        return web.Response(body=b"".join(line + b"\n" for line in lines), content_type="application/x-ndjson")

    async def misbehave(request: web.Request) -> web.Response:
        what = msgspec.json.decode(await request.read(), type=Misbehaviour)
        return web.json_response({"connections": simulated.misbehave(request.query["exchange"], what)})

    async def recover(request: web.Request) -> web.Response:
        simulated.recover(request.query["exchange"])
        return web.json_response({})

    async def pause(request: web.Request) -> web.Response:
        simulated.pause()
        return web.json_response({"positionUs": simulated.clock.now_us})

    async def resume(request: web.Request) -> web.Response:
        simulated.resume()
        return web.json_response({"positionUs": simulated.clock.now_us})

    async def prepare(request: web.Request) -> web.Response:
        channels, minutes = request.query["channels"].split(","), int(request.query["minutes"])
        await simulated.prepare(request.query["exchange"], channels, minutes)
        return web.json_response({})

    async def advance(request: web.Request) -> web.Response:
        await simulated.advance(float(request.query["ms"]))
        return web.json_response({"positionUs": simulated.clock.now_us})

    for answer in (urls, book, connections, sent):
        app.router.add_get(f"/control/{answer.__name__}", _reporting(answer))
    for answer in (misbehave, recover, prepare, pause, resume, advance):
        app.router.add_post(f"/control/{answer.__name__}", _reporting(answer))


def _reporting(answer: _Answer) -> _Answer:
    """A mistake of the caller is a 400 that says which."""

    async def reporting(request: web.Request) -> web.Response:
        try:
            return await answer(request)
        except (OptionsError, msgspec.MsgspecError, ValueError) as error:
            return web.json_response({"message": str(error)}, status=400)
        except KeyError as error:
            return web.json_response({"message": f"{error.args[0]}: this request needs it"}, status=400)

    return reporting
