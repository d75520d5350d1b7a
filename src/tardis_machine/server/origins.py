"""Which web pages may use this server, and under which names it answers (ADR 13).

A browser lets any page send requests to any address, also to 127.0.0.1. `Origin` and `Sec-Fetch-Site` say which page it was;
`Host` says under which name it found the server, which a page can make point anywhere (DNS rebinding).

Invariant: a server with a bus on or an API key set, or that records, or was told its origins, serves no page of another origin.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

__all__ = ["ANY", "OriginPolicy", "is_loopback"]

ANY = "*"
# Whoever steers a replay steers that of somebody else: no page may that was not named, even where any page may ask for a replay.
_STEERING = "/replays"

_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "*",
    "Access-Control-Max-Age": "86400",
}


def is_loopback(name: str) -> bool:
    """Whether a host's name or address leads to this machine itself, whoever asks."""
    name = name.strip("[]").rstrip(".").lower()
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


class OriginPolicy:
    """Says who is refused. `is_guarded`: it publishes, records or spends an API key, so that not any page may use it."""

    def __init__(
        self, *, origins: Iterable[str] | None, hosts: Iterable[str] | None, is_guarded: bool, is_on_loopback: bool
    ) -> None:
        self._origins = frozenset(origins if origins is not None else () if is_guarded else (ANY,))
        self._named_origins = frozenset(origins or ())
        if hosts is None:
            hosts = () if is_on_loopback else (ANY,)
        self._hosts = frozenset(host.lower() for host in hosts)

    def refusal(self, request: web.Request) -> str | None:
        """Why a request is refused; None where it is not."""
        host = _name_of(request.headers.get(hdrs.HOST, ""))
        if host and not self._answers_to(host):
            return f"Host: this server does not answer to {host!r}; allow the name with --allowed-hosts"
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None:
            if not self._serves(request, origin):
                return f"Origin: pages of {origin!r} may not use this server; allow them with --allowed-origins"
        elif ANY not in self._origins_for(request) and request.headers.get("Sec-Fetch-Site") == "cross-site":
            # An image, a form or a link of a page, for which a browser names no origin.
            return "Sec-Fetch-Site: pages of other sites may not use this server; allow them with --allowed-origins, and fetch with CORS"
        return None

    def _answers_to(self, host: str) -> bool:
        return ANY in self._hosts or host in self._hosts or _is_address(host) or is_loopback(host)

    def _origins_for(self, request: web.Request) -> frozenset[str]:
        return self._named_origins if request.path.startswith(_STEERING) else self._origins

    def _serves(self, request: web.Request, origin: str) -> bool:
        origins = self._origins_for(request)
        return ANY in origins or origin.lower() in origins or _is_local(origin)

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Lets a page that is served read the answer."""
        if request.path == "/metrics" or self.refusal(request) is not None:
            return
        if ANY in self._origins_for(request):
            response.headers["Access-Control-Allow-Origin"] = ANY
        elif origin := request.headers.get(hdrs.ORIGIN):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers.add(hdrs.VARY, hdrs.ORIGIN)
        if request.method == hdrs.METH_OPTIONS:
            response.headers.update(_PREFLIGHT)

    def check(self) -> Middleware:
        """Refuses what is not allowed, before anything else is looked at, and answers preflights."""

        @web.middleware
        async def check_origin(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            reason = self.refusal(request)
            if reason is not None:
                raise web.HTTPForbidden(reason=reason)
            if request.method == hdrs.METH_OPTIONS:
                return web.Response(status=204)
            return await handler(request)

        return check_origin


def _name_of(host: str) -> str:
    """The name without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return host


def _is_address(host: str) -> bool:
    """A page's name can be made to point here, an address can't."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_local(origin: str) -> bool:
    """Whether a page came from this machine itself."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and is_loopback(parts.hostname or "")
