"""Who sends one of the server's tokens is served; nobody else, where there are any.

Invariant: the comparison takes as long whatever was sent.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

__all__ = ["PROTOCOL", "requires_token"]

PROTOCOL = "tardis-machine"
"""The WebSocket subprotocol that is chosen for who offers it, beside one that holds the token."""

_BEARER = "Bearer "
# A page can't set headers of a WebSocket handshake, but it can name subprotocols: `bearer.` and the token in base64url.
_BEARER_PROTOCOL = "bearer."


def requires_token(tokens: Sequence[str], is_open: Callable[[str], bool]) -> Middleware:
    """Refuses who sends none of them, except for paths that are open. A browser's preflight, which can't, is answered before this."""
    expected = [token.encode() for token in tokens]

    @web.middleware
    async def check_token(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        given = _given(request)
        # All of them are looked at, so that the time says nothing.
        if not is_open(request.path) and not sum(hmac.compare_digest(given, token) for token in expected):
            reason = "Authorization: expected Bearer and a token that this server was started with"
            raise web.HTTPUnauthorized(reason=reason, headers={hdrs.WWW_AUTHENTICATE: "Bearer"})
        return await handler(request)

    return check_token


def _given(request: web.Request) -> bytes:
    """The token that came; nothing where none did."""
    header = request.headers.get(hdrs.AUTHORIZATION, "")
    if header.startswith(_BEARER):
        return header.removeprefix(_BEARER).encode(errors="surrogateescape")
    for name in request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "").split(","):
        if name.strip().startswith(_BEARER_PROTOCOL):
            text = name.strip().removeprefix(_BEARER_PROTOCOL)
            try:
                return urlsafe_b64decode(text + "=" * (-len(text) % 4))
            except ValueError:
                return b""
    return b""
