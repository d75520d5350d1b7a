"""How clients steer replays: control frames on a WebSocket, and `/replays` over HTTP.

Invariant: a control that is wrong is answered with one sentence, and ends nothing. What is no control is passed over.
"""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from ..engine import Machine
from ..errors import OptionsError
from ..player.control import is_control, parse_control
from ..player.player import Player
from ..telemetry import redact
from .request_options import OptionsReader

__all__ = ["ReplaysRoutes", "answer_to_control", "control_in"]

# Longer frames are no controls, and are not looked into.
MAX_CONTROL_BYTES = 4096


def control_in(frame: bytes | str) -> Any:
    """The control that a frame may be; None where it is none. Subscriptions of exchanges have no field of that name."""
    if len(frame) > MAX_CONTROL_BYTES or (b'"control"' if isinstance(frame, bytes) else '"control"') not in frame:  # type: ignore[operator]
        return None
    try:
        message = orjson.loads(frame)
    except orjson.JSONDecodeError:
        return None
    return message if is_control(message) else None


def answer_to_control(message: Any, player: Player | None) -> bytes:
    """Has a player obey a control, and says what came of it; None: the replay has not begun."""
    try:
        control = parse_control(message)
        if player is None:
            raise OptionsError("control: this replay has not begun; it takes controls then", "control")
        player.obey(control)
    except OptionsError as error:
        name = message["control"] if isinstance(message["control"], str) else None
        return orjson.dumps({"control": name and name[:40], "error": redact(str(error)), "field": error.field})
    return orjson.dumps({"control": control.name, "replay": player.status()})


class ReplaysRoutes:
    """The handlers, for one machine."""

    def __init__(self, machine: Machine, reader: OptionsReader) -> None:
        self._machine = machine
        self._reader = reader

    def add_to(self, app: web.Application) -> None:
        """Puts the routes into an application."""
        app.router.add_get("/replays", self.list_all)
        app.router.add_get("/replays/{id}", self.show)
        app.router.add_post("/replays/{id}/control", self.control)

    async def list_all(self, _request: web.Request) -> web.Response:
        """What runs."""
        return _json({"replays": [player.status() for player in self._machine.players]})

    async def show(self, request: web.Request) -> web.Response:
        """One replay that runs."""
        return _json(self._find(request).status())

    async def control(self, request: web.Request) -> web.Response:
        """Steers one; answers with what it does then."""
        control = await self._reader.read(request, lambda message, _: parse_control(message))
        player = self._find(request)
        player.obey(control)
        return _json(player.status())

    def _find(self, request: web.Request) -> Player:
        player = self._machine.players.find(request.match_info["id"])
        if player is None:
            raise web.HTTPNotFound(reason="no replay of this id runs; GET /replays lists those that do")
        return player


def _json(body: object) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json", headers={"Cache-Control": "no-store"})
