"""What the page is told of a lake job that does not answer as one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import ClientTimeout, web
from aiohttp.test_utils import TestServer

from tardis_machine.server.page import lake
from tests.servers.process import free_port

pytestmark = pytest.mark.asyncio


async def told(url: str) -> dict[str, Any]:
    jobs = lake.LakeJobs([url])
    async with jobs.watched(), asyncio.timeout(10):
        while not jobs.states:
            await asyncio.sleep(0.02)
    return jobs.states[0]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (web.Response(status=503), "it answered with status 503"),
        (web.Response(status=302, headers={"Location": "http://127.0.0.1:9/"}), "it answered with status 302"),
        (web.Response(text="tardis_machine_up 1\n"), "what it answered are no metrics"),
        (web.Response(text='tardis_machine_lake_lag_seconds{a="b} x'), "what it answered are no metrics"),
        (web.Response(body=b"\xff\xfe"), "what it answered are no metrics"),
        (web.Response(body=b"#" * (lake._MAX_BYTES + 1)), "what it answered are no metrics"),
        (None, "it does not answer"),
    ],
)
async def test_what_is_no_lake_job_is_a_sentence(
    answer: web.Response | None, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake, "_TIMEOUT", ClientTimeout(total=0.5))

    async def respond(_: web.Request) -> web.Response:
        if answer is None:
            await asyncio.sleep(5)
        return answer or web.Response()

    app = web.Application()
    app.router.add_get("/metrics", respond)
    async with TestServer(app) as server:
        assert (await told(str(server.make_url("/metrics"))))["problem"] == problem


async def test_one_that_is_gone_is_named_without_its_password() -> None:
    port = free_port()
    assert await told(f"http://me:secret@127.0.0.1:{port}/metrics") == {
        "job": f"127.0.0.1:{port}",
        "problem": "it can't be reached",
    }
