"""The page in a real browser: every view, live updates, the player, a dead bus, the token."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from playwright.async_api import Browser, Page, expect

from tardis_machine.lakehouse.metrics import served_metrics
from tardis_machine.lakehouse.streams import Counts
from tardis_machine.lakehouse.tables import EVENTS
from tardis_machine.messages import parse_timestamp_us
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording
from tardis_machine.spark.history import HistoryDataSource, plan_parts, read_part
from tests.browser.browser import chromium, visit
from tests.integration.machine import Client, options, running_machine
from tests.integration.scripted_exchange import scripted_exchange
from tests.integration.served import served
from tests.integration.test_publishing import published
from tests.integration.test_stream_server import asked, live_machine, trade
from tests.servers.http_site import http_site
from tests.servers.process import free_port
from tests.servers.redis import RedisServer

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

TOKEN = "the-token-of-this-test"
HOSTILE = "<img src=x onerror=alert(1)>"
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


def web_refusal() -> web.Response:
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
        # At this speed, what a busy machine is late by is little of the market's time.
        await page.select_option("[data-control=speed]", "1")
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
        await expect(page.locator("#timeline-gaps .gap").first).to_be_attached()
        await picture(page, "page_market")
        await expect(page.locator("[data-control=pause]")).to_have_text("Play again")
        await page.click("[data-control=stop]")
        await expect(page.locator("#player")).to_be_hidden()


async def seek_of(page: Page) -> Any:
    return await page.query_selector("[data-control=seek]")


async def click_timeline(page: Page, share: float) -> None:
    box = await page.locator("[data-control=seek]").bounding_box()
    assert box is not None
    await page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)


async def test_the_timeline_goes_on_after_a_click_and_an_end_is_not_the_last(browser: Browser, machine: Client) -> None:
    async with visit(browser, machine.machine.port) as page:
        await open_market(page, 20)
        await expect(page.locator("#tape tbody tr").first).to_be_visible()
        # Slow enough that a busy machine sees where it is.
        await page.select_option("[data-control=speed]", "10")
        await click_timeline(page, 0.5)
        await reach(page, lambda shown: "2020-02-01 00:09" < shown < "2020-02-01 00:12")
        await page.select_option("[data-control=speed]", "600")
        # The slider has the focus from the click, and moves all the same.
        async with asyncio.timeout(30):
            while int(await page.input_value("[data-control=seek]")) < 600:
                await page.wait_for_timeout(50)
        await expect(page.locator("[data-control=pause]")).to_have_text("Play again")
        await expect(page.locator("[data-control=step]")).to_be_disabled()
        await expect(page.locator("#timeline-gaps .played").nth(1)).to_be_attached()
        widths = await page.locator("#timeline-gaps .gap").evaluate_all("gaps => gaps.map(gap => parseFloat(gap.style.width))")
        # One that a seek led away from has no end.
        assert sum(width > 0 for width in widths) > 3
        await page.select_option("[data-control=speed]", "10")
        await click_timeline(page, 0.25)
        await reach(page, lambda shown: "2020-02-01 00:04" < shown < "2020-02-01 00:07")
        await expect(page.locator("#ladder tbody tr")).to_have_count(30)
        await expect(page.locator("[data-control=pause]")).to_have_text("Pause")
        await page.select_option("[data-control=speed]", "max")
        await expect(page.locator("[data-control=pause]")).to_have_text("Play again")
        await page.select_option("[data-control=speed]", "10")
        await page.click("[data-control=pause]")
        await reach(page, lambda shown: shown < "2020-02-01 00:02")
        await expect(page.locator("#tape tbody tr").first).to_be_visible()


async def test_a_market_without_data_says_so(browser: Browser, machine: Client) -> None:
    async with visit(browser, machine.machine.port) as page:
        await page.click("nav >> text=Market")
        await expect(page.locator("#market-empty")).to_be_visible()
        await page.fill("#market-form [name=symbol]", "NOSUCH")
        await open_market(page, 1)
        await expect(page.locator("#market-empty")).to_be_hidden()
        await expect(page.locator("#market-note")).to_have_text("There is nothing of NOSUCH on bitmex in this time.")


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
        await expect(page.locator("#market-note")).to_be_hidden()
        # What is live has no speed and no other time.
        await expect(page.locator("[data-control=pause]")).to_be_hidden()
        await expect(page.locator("[data-control=seek]")).to_be_hidden()


def level(number: int, side: str, price: float, size: int) -> dict[str, Any]:
    return {"symbol": "XBTUSD", "id": number, "side": side, "size": size, "price": price}


async def test_a_book_of_few_levels_and_a_liquidation_are_shown(browser: Browser, tmp_path: Path) -> None:
    async with (
        scripted_exchange() as exchange,
        live_machine(exchange, tmp_path) as client,
        visit(browser, client.machine.port) as page,
    ):
        await page.click("nav >> text=Market")
        await page.select_option("#market-form [name=when]", "live")
        await page.click("#market-form button")
        connection = await exchange.client()
        book = [level(1, "Sell", 108.5, 7), level(2, "Sell", 109, 9), level(3, "Buy", 108, 5)]
        await connection.send({"table": "orderBookL2", "action": "partial", "keys": ["id"], "data": book})
        prices = page.locator("#ladder tbody td:nth-child(2)")
        async with asyncio.timeout(30):
            # A snapshot is due when something comes after its second.
            while not await prices.count():
                update = {"symbol": "XBTUSD", "id": 3, "side": "Buy", "size": time.time_ns() % 1000 + 1}
                await connection.send({"table": "orderBookL2", "action": "update", "data": [update]})
                await page.wait_for_timeout(200)
        await expect(prices).to_have_text(["109.0", "108.5", "108.0"])
        await expect(page.locator("#spread")).to_contain_text("spread 0.5 ")
        liquidation = {"orderID": "1", "symbol": "XBTUSD", "side": "Sell", "price": 108.5, "leavesQty": 500}
        await connection.send({"table": "liquidation", "action": "insert", "data": [liquidation]})
        await expect(page.locator("#tape .liquidation td")).to_have_text([re.compile(":"), "108.5", "liq. 500"])


async def test_what_comes_from_outside_stays_text(browser: Browser, tmp_path: Path) -> None:
    async with (
        scripted_exchange() as exchange,
        live_machine(exchange, tmp_path) as client,
        client.http.ws_connect(client.ws_url("/ws-stream-normalized"), params=asked(symbols=[HOSTILE])),
        visit(browser, client.machine.port) as page,
    ):
        await exchange.client()
        await expect(page.locator("#feeds tbody td").nth(1)).to_have_text(HOSTILE)
        await page.click("nav >> text=Market")
        await page.select_option("#market-form [name=when]", "live")
        await page.fill("#market-form [name=symbol]", HOSTILE)
        await page.click("#market-form button")
        connection = await exchange.client()
        await connection.send(trade(1, HOSTILE), {"status": 400, "error": HOSTILE})
        await expect(page.locator("#tape tbody tr")).to_have_count(1)
        await expect(page.locator("#market-problem")).to_have_text(f"400 {HOSTILE}")
        await page.click("nav >> text=Request")
        await page.fill("#request-form [name=symbols]", f"{HOSTILE}, '$(id)'")
        curl = await page.text_content('[data-title="curl"] pre') or ""
        assert (HOSTILE in curl, "'\\''$(id)'\\''" in curl) == (True, True)
        assert await page.locator("img").count() == 0
        # All that the state of a machine names, at once.
        shown = await page.evaluate(
            """async state => {
                const { showNow } = await import("/ui/now.js");
                showNow(state, true);
                return [document.querySelectorAll("img").length, document.querySelector("#now").textContent];
            }""",
            hostile_state(),
        )
        assert shown[0] == 0
        assert shown[1].count(HOSTILE) == 12


def hostile_state() -> dict[str, Any]:
    """A state whose names are all HTML."""
    feed = {"exchange": HOSTILE, "symbols": [HOSTILE], "dataTypes": [HOSTILE], "isPublished": True, "lastMessageMs": None}
    bus = {"bus": HOSTILE, "state": HOSTILE, "last_error": HOSTILE, "confirm_ms": None}
    replay = {
        "id": HOSTILE,
        "request": [{"exchange": HOSTILE, "filters": [{"channel": HOSTILE, "symbols": [HOSTILE]}]}],
        "requestCount": 1,
        "state": HOSTILE,
        **dict.fromkeys(("position", "from", "to"), "2020-02-01T00:00:00.000000Z"),
    }
    return {
        "timestampMs": 0,
        "feeds": [feed | {"isHearing": True, "outagesMs": []}],
        "buses": [bus | {"queue_bytes": 0, "spool_bytes": 0}],
        "replays": [replay],
        "lakeJobs": [{"job": HOSTILE, "problem": HOSTILE}],
    }


async def test_no_page_of_others_frames_it(browser: Browser, machine: Client) -> None:
    async def framing(_: web.Request) -> web.Response:
        return web.Response(text=f'<iframe src="{machine.url("/")}"></iframe>', content_type="text/html")

    profile = await browser.new_context()
    try:
        async with http_site(framing) as port:
            page = await profile.new_page()
            async with page.expect_console_message(lambda message: "frame-ancestors" in message.text):
                await page.goto(f"http://127.0.0.1:{port}/")
            assert await page.frames[1].query_selector("main") is None
    finally:
        await profile.close()


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
        compile(texts["Python"], "snippet", "exec")
        for name, value, problem in (
            ("to", "2020-13-01", "to: expected an ISO 8601 date"),
            ("exchange", HOSTILE, "exchange: expected"),
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


async def test_what_is_shown_can_be_copied_also_where_the_page_has_no_clipboard(browser: Browser, machine: Client) -> None:
    async with visit(browser, machine.machine.port, permissions=["clipboard-read", "clipboard-write"]) as page:
        await page.click("nav >> text=Request")
        for title in ("curl", "TOML"):
            await page.click(f'[data-title="{title}"] button')
            await expect(page.locator(f'[data-title="{title}"] button')).to_have_text("Copied")
            await page.evaluate("window.kept ??= navigator.clipboard")
            assert await page.evaluate("kept.readText()") == await page.text_content(f'[data-title="{title}"] pre')
            # As it is for a page that came from another machine without TLS.
            await page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")


async def test_symbols_can_be_chosen_one_after_the_other(browser: Browser, machine: Client) -> None:
    async with visit(browser, machine.machine.port) as page:
        await page.click("nav >> text=Request")
        field, names = page.locator("#request-form [name=symbols]"), page.locator("#symbols-names option")
        await field.focus()
        await expect(names.locator("xpath=self::*[@value='XBTUSD']")).to_have_count(1)
        await field.press("End")
        await field.press_sequentially(",")
        await expect(names.locator("xpath=self::*[@value='XBTUSD,ETHUSD']")).to_have_count(1)


async def test_the_snippet_of_spark_reads_what_the_page_showed(machine: Client, browser: Browser, tmp_path: Path) -> None:
    async with visit(browser, machine.machine.port) as page:
        await page.click("nav >> text=Request")
        await page.fill("#request-form [name=to]", "2020-02-01T00:01")
        await page.check("#request-form [name=withDisconnectMessages]")
        spark = await page.text_content('[data-title="Spark"] pre') or ""
    compile(spark, "snippet", "exec")
    given = {"apiUrl": machine.machine._settings.api_url, "cacheDir": str(tmp_path)}
    given |= ast.literal_eval(spark[spark.index("{") : spark.index("}") + 1])

    def types() -> list[str]:
        """As Spark has the format read, without Spark."""
        parts = plan_parts(HistoryDataSource(given).plan)
        return [kind for part in parts for batch in read_part(part, ["type"]) for kind in batch.column("type").to_pylist()]

    expected = await machine.lines(options(to="2020-02-01T00:01:00Z", dataTypes=["trade"], withDisconnectMessages=True))
    assert Counter(await asyncio.to_thread(types)) == Counter(message["type"] for message in expected)


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
            await expect(page.locator("#now")).not_to_have_class("stale")
        await expect(page.locator("#connection")).to_have_text("the server does not answer")
        await expect(page.locator("#now")).to_have_class("stale")
        with served(tmp_path, tmp_path / "second.log", "--workers", "0", port=port):
            await expect(page.locator("#connection")).to_contain_text("connected", timeout=20_000)
    finally:
        await profile.close()
