"""The page in a real browser: every view, live updates, the player, a dead bus, the token."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tardis_machine.lakehouse.metrics import served_metrics
from tardis_machine.lakehouse.streams import Counts
from tardis_machine.lakehouse.tables import EVENTS
from tardis_machine.messages import parse_timestamp_us
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording
from tests.browser.browser import chromium, visit
from tests.integration.machine import Client, options, running_machine
from tests.integration.scripted_exchange import scripted_exchange
from tests.integration.served import served
from tests.integration.test_publishing import published
from tests.integration.test_stream_server import asked, live_machine, trade
from tests.servers.process import free_port
from tests.servers.redis import RedisServer

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

TOKEN = "the-token-of-this-test"
IMAGES = Path(__file__).parents[2] / "docs" / "images"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def machine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """One that has lost connections in its history."""
    async with (
        SampleHistoryApi(Recording(SampleMarket(), disconnects_per_day=1440.0)) as api,
        running_machine(api, tmp_path_factory.mktemp("cache"), workers=1) as client,
    ):
        yield client


@pytest.fixture
def picture(request: pytest.FixtureRequest) -> Callable[[Page, str], Any]:
    """Takes a screenshot for the documents where `--screenshots` asks for it."""

    async def take(page: Page, name: str) -> None:
        if request.config.getoption("--screenshots"):
            IMAGES.mkdir(exist_ok=True)
            await page.screenshot(path=IMAGES / f"{name}.png")

    return take


async def open_market(page: Page, minutes: int, interval: str = "10") -> None:
    await page.click("nav >> text=Market")
    await page.fill("#market-form [name=to]", f"2020-02-01T00:{minutes:02}")
    await page.select_option("#market-form [name=interval]", interval)
    await page.click("#market-form button")


async def position(page: Page) -> str:
    return await page.text_content("#position") or ""


async def reach(page: Page, is_there: Callable[[str], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_there(await position(page)):
            await page.wait_for_timeout(50)


async def test_now_shows_a_live_feed_its_losses_and_its_return(browser: Browser, tmp_path: Path, picture: Any) -> None:
    async with (
        scripted_exchange() as exchange,
        live_machine(exchange, tmp_path, file={"dir": tmp_path / "events"}, spool_dir=tmp_path / "spool") as client,
        visit(browser, client.machine.port) as page,
    ):
        await expect(page.locator('.empty[data-for="feeds"]')).to_be_visible()
        async with client.http.ws_connect(client.ws_url("/ws-stream-normalized"), params=asked()) as socket:
            first = await exchange.client()
            await first.send(trade(1), trade(2))
            await socket.receive_json(timeout=15)
            row = page.locator("#feeds tbody tr")
            await expect(row).to_have_count(1)
            await expect(row.locator("td").nth(0)).to_have_text("bitmex")
            await expect(row.locator("td").nth(5)).to_have_class("number good")
            await expect(row.locator(".lane i")).to_have_count(0)
            exchange.refusals = [web_refusal() for _ in range(30)]
            first.cut()
            await expect(row.locator("td").nth(5)).to_have_class("number bad")
            await expect(row.locator("td").nth(6)).to_have_text("1")
            await expect(row.locator(".lane i")).to_have_count(1)
            exchange.refusals.clear()
            second = await exchange.client()
            await second.send(trade(3))
            await expect(row.locator("td").nth(5)).to_have_class("number good")
            await picture(page, "page_now")
        await expect(page.locator("#buses tbody tr td").nth(1)).to_have_text("connected")


def web_refusal() -> Any:
    from aiohttp import web

    return web.Response(status=503)


async def test_a_dead_bus_turns_red_and_recovers(
    browser: Browser, tmp_path: Path, own_server: Callable[[type[RedisServer]], RedisServer]
) -> None:
    server = own_server(RedisServer)
    bus = {"host": "127.0.0.1", "port": server.port, "stream": "events"}
    async with (
        SampleHistoryApi() as api,
        running_machine(api, tmp_path / "cache", redis=bus, spool_dir=tmp_path / "spool") as client,
        visit(browser, client.machine.port) as page,
    ):
        row = page.locator("#buses tbody tr")
        await expect(row.locator("td").nth(1)).to_have_text("connected")
        await expect(row).not_to_have_class("dead")
        await asyncio.to_thread(server.kill)
        lines = len(await client.lines(options()))
        await expect(row).to_have_class("dead")
        color = await row.locator("td").nth(1).evaluate("cell => getComputedStyle(cell).color")
        assert color == "rgb(179, 38, 30)"
        await asyncio.to_thread(server.start)
        await expect(row).not_to_have_class("dead")
        # All messages, and the end of the session.
        await expect(row.locator("td").nth(7)).to_have_text(f"{lines + 1:,}")
        await expect(row.locator("td").nth(8)).to_have_text("0")


async def test_a_market_plays_pauses_steps_seeks_and_ends(browser: Browser, machine: Client, picture: Any) -> None:
    async with visit(browser, machine.machine.port) as page:
        await open_market(page, 20)
        await expect(page.locator("#ladder tbody tr")).to_have_count(30)
        await expect(page.locator("#tape tbody tr").first).to_be_visible()
        await page.click("[data-control=pause]")
        await expect(page.locator("[data-control=pause]")).to_have_text("Play")
        [replay] = (await (await machine.http.get(machine.url("/replays"))).json())["replays"]
        assert replay["paused"]
        # What was on its way is still drawn, up to the last message before the pause.
        paused_at_us = parse_timestamp_us(replay["position"])
        await reach(page, lambda shown: 0 <= paused_at_us - parse_timestamp_us(f"{shown.replace(' ', 'T')}Z") < 3_000_000)
        await page.wait_for_timeout(1000)
        held = await position(page)
        await page.wait_for_timeout(1500)
        assert await position(page) == held
        await page.click("[data-control=step]")
        await page.evaluate("seek => { seek.value = 900; seek.dispatchEvent(new Event('change')); }", await seek_of(page))
        await expect(page.locator("#position")).to_have_text("2020-02-01 00:17:59")
        # A paused player shows the book of where it was led.
        await expect(page.locator("#ladder tbody tr")).to_have_count(30)
        await expect(page.locator("#tape tbody tr")).to_have_count(0)
        await page.evaluate("seek => { seek.value = 100; seek.dispatchEvent(new Event('change')); }", await seek_of(page))
        await reach(page, lambda shown: shown < "2020-02-01 00:03")
        await page.select_option("[data-control=speed]", "600")
        await page.locator("#market-title").click()
        await page.keyboard.press("Space")
        await reach(page, lambda shown: shown > "2020-02-01 00:12")
        await expect(page.locator("#timeline-gaps i").first).to_be_attached()
        await picture(page, "page_market")
        await expect(page.locator("[data-control=pause]")).to_have_text("Ended")
        await page.click("[data-control=stop]")
        await expect(page.locator("#player")).to_be_hidden()


async def seek_of(page: Page) -> Any:
    return await page.query_selector("[data-control=seek]")


async def test_now_shows_how_far_the_lake_is(browser: Browser, tmp_path: Path) -> None:
    port, gone = free_port(), free_port()
    jobs = [f"http://user:a-password@127.0.0.1:{one}/metrics" for one in (port, gone)]
    ingest = Counts({EVENTS.name: 1200}, stream="bronze-kafka", newest_us=int((time.time() - 30) * 1e6), left={"records": 5})
    async with running_machine(SampleHistoryApi(port=9), tmp_path, workers=0, lake_metrics=jobs) as client:
        with served_metrics(port, "127.0.0.1") as report:
            report([ingest])
            async with visit(browser, client.machine.port) as page:
                cells, problem = (
                    page.locator("#lake-jobs tr >> nth=1 >> td"),
                    page.locator("#lake-jobs tr >> nth=2 >> td >> nth=7"),
                )
                await expect(cells.nth(0)).to_have_text(f"127.0.0.1:{port}")
                await expect(cells.nth(1)).to_have_class("number good")
                await expect(cells.nth(2)).to_have_text("5 records")
                await expect(problem).to_have_text("it can't be reached")
                assert "a-password" not in await page.content()
                report([replace(ingest, newest_us=int((time.time() - 3600) * 1e6), lost=3)])
                await expect(cells.nth(1)).to_have_text("60 m", timeout=15_000)
                await expect(cells.nth(1)).to_have_class("number bad")
                await expect(cells.nth(6)).to_have_class("number bad")
    async with (
        running_machine(SampleHistoryApi(port=9), tmp_path, workers=0) as client,
        visit(browser, client.machine.port) as page,
    ):
        await expect(page.locator("#machine dt").first).to_be_visible()
        await expect(page.locator("#lake")).to_be_hidden()


async def test_symbols_of_the_exchange_are_there_to_choose_from(browser: Browser, machine: Client) -> None:
    async with visit(browser, machine.machine.port) as page:
        await page.click("nav >> text=Market")
        names = page.locator("#symbol-names option")
        await page.focus("#market-form [name=symbol]")
        await expect(names.locator("xpath=self::*[@value='XBTUSD']")).to_have_count(1)
        await page.fill("#market-form [name=exchange]", "deribit")
        await page.focus("#market-form [name=symbol]")
        await expect(names.locator("xpath=self::*[@value='BTC-PERPETUAL']")).to_have_count(1)
        await expect(names.locator("xpath=self::*[@value='XBTUSD']")).to_have_count(0)


async def test_what_the_page_plays_is_not_published(browser: Browser, tmp_path: Path) -> None:
    bus = {"dir": tmp_path / "events"}
    async with (
        SampleHistoryApi() as api,
        running_machine(api, tmp_path / "cache", file=bus, spool_dir=tmp_path / "spool") as client,
    ):
        async with visit(browser, client.machine.port) as page:
            await open_market(page, 1)
            await expect(page.locator("#tape tbody tr").first).to_be_visible()
            await page.click("[data-control=stop]")
            await page.click("nav >> text=Request")
            await page.click("#request-form button[type=submit]")
            await expect(page.locator("#answer")).to_contain_text('"type":"trade"')
        sent = await client.lines(options(dataTypes=["trade"]))
    # Whoever else asks is published as ever.
    events = published(tmp_path / "events")
    assert [event.WhichOneof("payload") for event in events].count("trade") == len(sent)
    assert len(events) == len(sent) + 1


async def test_a_live_market_is_drawn_as_it_comes(browser: Browser, tmp_path: Path) -> None:
    async with (
        scripted_exchange() as exchange,
        live_machine(exchange, tmp_path, auth_token=TOKEN) as client,
        visit(browser, client.machine.port, expected_status=401) as page,
    ):
        await enter(page, TOKEN)
        await page.click("nav >> text=Market")
        await page.select_option("#market-form [name=when]", "live")
        await expect(page.locator("#market-form [name=from]")).to_be_hidden()
        await page.click("#market-form button")
        connection = await exchange.client()
        await connection.send(trade(7), trade(8))
        await expect(page.locator("#tape tbody tr")).to_have_count(2)
        await expect(page.locator("#tape tbody tr td").nth(1)).to_have_text("108")
        await expect(page.locator("[data-control=pause]")).to_be_disabled()


async def enter(page: Page, token: str) -> None:
    await expect(page.locator("#login")).to_be_visible()
    await page.fill("#login input", token)
    await page.click("#login button")


async def test_a_token_is_asked_for_until_it_is_right_and_kept_nowhere(browser: Browser, tmp_path: Path) -> None:
    async with (
        SampleHistoryApi() as api,
        running_machine(api, tmp_path / "cache", workers=0, auth_token=TOKEN) as client,
        visit(browser, client.machine.port, expected_status=401) as page,
    ):
        await enter(page, "wrong")
        await expect(page.locator("#login .problem")).to_be_visible()
        await enter(page, TOKEN)
        await expect(page.locator("#connection")).to_contain_text("connected")
        await page.click("nav >> text=Request")
        await page.click("#request-form button[type=submit]")
        await expect(page.locator("#answer")).to_contain_text('"type":"trade"')
        assert TOKEN not in await page.content()
        await page.reload()
        await expect(page.locator("#login")).to_be_visible()


async def test_a_request_is_tried_and_taken_elsewhere(browser: Browser, machine: Client, picture: Any) -> None:
    async with visit(browser, machine.machine.port, expected_status=400) as page:
        await page.click("nav >> text=Request")
        await page.click("#request-form button[type=submit]")
        await expect(page.locator("#answer")).to_contain_text('"type":"trade"')
        shown = (await page.text_content("#answer") or "").splitlines()
        assert len(shown) == 20
        texts = {
            title: await page.text_content(f'[data-title="{title}"] pre') or "" for title in ("curl", "Python", "Spark", "TOML")
        }
        await picture(page, "page_request")
        curled = await asyncio.to_thread(subprocess.run, ["bash", "-c", texts["curl"]], capture_output=True, timeout=60)
        assert curled.stdout.splitlines()[:20] == [line.encode() for line in shown]
        assert 'data-types = ["trade"]' in texts["TOML"]
        assert "--data-types 'trade'" in texts["Spark"]
        compile(texts["Python"], "snippet", "exec")
        for name, value, problem in (
            ("to", "2020-13-01", "to: expected an ISO 8601 date"),
            ("exchange", "<img src=x onerror=alert(1)>", "exchange: expected"),
        ):
            before = await page.input_value(f"#request-form [name={name}]")
            await page.fill(f"#request-form [name={name}]", value)
            await page.click("#request-form button[type=submit]")
            field = page.locator(f"#request-form [name={name}]")
            await expect(field).to_have_attribute("aria-invalid", "true")
            await expect(page.locator(f"#request-form label:has([name={name}]) .problem")).to_contain_text(problem)
            await page.fill(f"#request-form [name={name}]", before)
        assert await page.locator("main img").count() == 0
        await page.fill("#request-form [name=computed]", "trade_bar_1x")
        await page.click("#request-form button[type=submit]")
        await expect(page.locator('[data-field="dataTypes"]')).to_contain_text("trade_bar_1x")


async def test_the_snippets_of_python_and_toml_do_what_the_page_did(machine: Client, browser: Browser, tmp_path: Path) -> None:
    async with visit(browser, machine.machine.port) as page:
        await page.click("nav >> text=Request")
        await page.fill("#request-form [name=to]", "2020-02-01T00:01")
        python = await page.text_content('[data-title="Python"] pre') or ""
        toml = await page.text_content('[data-title="TOML"] pre') or ""
    expected = await machine.lines(options(to="2020-02-01T00:01:00Z", dataTypes=["trade"]))
    api_url = machine.machine._settings.api_url
    environ = {"TM_API_URL": api_url, "TM_CACHE_DIR": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    (tmp_path / "request.toml").write_text(toml)
    command = [sys.executable, "-m", "tardis_machine", "replay", "--config", str(tmp_path / "request.toml")]
    replayed = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=60, env=environ)
    assert [json.loads(line) for line in replayed.stdout.splitlines()] == expected, replayed.stderr
    python = python.replace("    ):", f"        api_url={api_url!r},\n        cache_dir={str(tmp_path)!r},\n    ):")
    command = [sys.executable, "-c", python]
    printed = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=60, env=environ, text=True)
    assert printed.stdout.count("Trade(") == len(expected), printed.stderr


async def test_only_a_machine_that_allows_it_lets_its_page_steer_others(
    browser: Browser, machine: Client, tmp_path: Path
) -> None:
    async with (
        SampleHistoryApi() as api,
        running_machine(api, tmp_path / "cache", workers=1, ui_control=True) as allowing,
    ):
        for client, buttons in ((machine, 0), (allowing, 2)):
            query = {"options": json.dumps(options(speed=1))}
            async with (
                client.http.get(client.url("/replay-normalized"), params=query) as response,
                visit(browser, client.machine.port) as page,
            ):
                await response.content.readline()
                row = page.locator("#replays tbody tr")
                await expect(row).to_have_count(1)
                await expect(row.locator("button")).to_have_count(buttons)
                if buttons:
                    await row.locator("text=Pause").click()
                    await expect(row.locator("td").nth(2)).to_have_text("paused")


async def test_it_is_usable_by_keyboard_in_the_dark_and_on_a_narrow_screen(browser: Browser, machine: Client) -> None:
    async with visit(browser, machine.machine.port, viewport={"width": 380, "height": 800}, color_scheme="dark") as page:
        back = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert back == "rgb(19, 20, 23)"
        for _ in range(2):
            await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await expect(page.locator("#market")).to_be_visible()
        await open_market(page, 2)
        await expect(page.locator("#ladder tbody tr")).to_have_count(30)
        for view in ("Now", "Market", "Request"):
            await page.click(f"nav >> text={view}")
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view


async def test_a_server_that_is_gone_is_told_and_found_again(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    profile = await browser.new_context()
    page = await profile.new_page()
    try:
        with served(tmp_path, tmp_path / "first.log", "--workers", "0", port=port):
            await page.goto(f"http://127.0.0.1:{port}/")
            await expect(page.locator("#connection")).to_contain_text("connected")
        await expect(page.locator("#connection")).to_have_text("the server does not answer")
        with served(tmp_path, tmp_path / "second.log", "--workers", "0", port=port):
            await expect(page.locator("#connection")).to_contain_text("connected", timeout=20_000)
    finally:
        await profile.close()
