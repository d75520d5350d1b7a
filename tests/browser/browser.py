"""A real browser, and what a page of ours may never do in it.

Invariant: when a visit ends, the console held no error, nothing was asked of another host, and nothing was stored.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, Request, async_playwright, expect

TIMEOUT_MS = 20_000.0
expect.set_options(timeout=TIMEOUT_MS)


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """The system's Chromium: a browser of Playwright's own can't be had from a package registry."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.fail("This test needs Chromium, which is not on the PATH: run `make setup`.", pytrace=False)
    async with async_playwright() as playwright:
        # Containers and CI run as root, where Chromium's own sandbox does not start.
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def visit(browser: Browser, port: int, **context: Any) -> AsyncIterator[Page]:
    """A page of the machine, in a profile of its own. `expected_status` 400: a test that provokes one sees it in the console."""
    expected = context.pop("expected_status", None)
    profile = await browser.new_context(viewport=context.pop("viewport", {"width": 1400, "height": 950}), **context)
    page = await profile.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    problems: list[str] = []
    home = f"http://127.0.0.1:{port}/"

    def note_console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not (expected and f"status of {expected}" in message.text):
            problems.append(f"console: {message.text}")

    def note_request(request: Request) -> None:
        if not request.url.startswith((home, home.replace("http", "ws"), "data:")):
            problems.append(f"asked of another host: {request.url}")

    page.on("console", note_console)
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on("request", note_request)
    page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
    try:
        await page.goto(home)
        yield page
        stored = await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
        assert stored == "[{},{}]"
        assert await profile.cookies() == []
    finally:
        await profile.close()
    assert not problems
