"""The page's own files, with the headers that keep a browser from doing anything else with them.

Invariant: what a page of this server loads or connects to is this server; nothing frames it.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import NamedTuple

from aiohttp import hdrs, web

__all__ = ["INDEX", "PAGE_FILES", "PageFiles"]

INDEX = "index.html"
PAGE_FILES = (
    INDEX,
    "style.css",
    "main.js",
    "server.js",
    "elements.js",
    "now.js",
    "market.js",
    "player.js",
    "chart.js",
    "heatmap.js",
    "ladder.js",
    "tape.js",
    "timeline.js",
    "symbols.js",
    "request.js",
    "snippets.js",
    "vendor/lightweight-charts/lightweight-charts.mjs",
    "vendor/lightweight-charts/LICENSE",
)
"""All there is; nothing else of the folder is ever served."""

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "mjs": "text/javascript"}
_SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class _File(NamedTuple):
    body: bytes
    content_type: str
    tag: str


class PageFiles:
    """Reads a file when it is first asked for."""

    def __init__(self) -> None:
        self._read: dict[str, _File] = {}

    def answer(self, request: web.Request, name: str) -> web.Response:
        """The file, or that the browser has it already."""
        if name not in PAGE_FILES:
            raise web.HTTPNotFound(reason=f"there is no page {name!r}"[:200])
        file = self._read.get(name) or self._read.setdefault(name, _read(name))
        headers = {**_SECURITY, hdrs.ETAG: file.tag}
        if request.headers.get(hdrs.IF_NONE_MATCH) == file.tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=file.body, content_type=file.content_type, charset="utf-8", headers=headers)


def _read(name: str) -> _File:
    body = files(__package__).joinpath("static", *name.split("/")).read_bytes()
    suffix = name.rpartition(".")[2]
    return _File(body, _TYPES.get(suffix, "text/plain"), f'"{hashlib.sha256(body).hexdigest()[:32]}"')
