"""The Python blocks of the guides to the library and to clients, run as they stand against a machine with a token."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars
import pytest
import requests

import tardis_machine
from tardis_machine.sample.history_api import SampleHistoryApi
from tests.integration.machine import options
from tests.integration.served import served
from tests.servers.process import ROOT

TOKEN = "TOKEN"  # as the guides write it


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("machine")
    with SampleHistoryApi.serve_in_process(activity=0.002, api_key="key") as upstream:
        place = ("--api-url", upstream, "--api-key", "key", "--auth-token", TOKEN, "--workers", "1")
        with served(folder / "cache", folder / "log", *place) as server:
            yield f"http://127.0.0.1:{server.port}"


def blocks(guide: str, section: str) -> list[str]:
    text = (ROOT / "docs" / guide).read_text()
    return re.findall(r"^```python\n(.*?)^```$", text[text.index(section) :], re.MULTILINE | re.DOTALL)


async def run(block: str, names: dict[str, Any]) -> None:
    """In a thread with an event loop of its own, which a block may await in; what it names is left in `names`."""
    code = compile(block, "guide", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    def evaluate() -> None:
        waiting = eval(code, names)
        if inspect.iscoroutine(waiting):
            asyncio.run(waiting)

    await asyncio.to_thread(evaluate)


async def test_the_library(url: str, tmp_path: Path) -> None:
    place = f'exchange="bitmex", api_url="{url}/v1", api_key="{TOKEN}", cache_dir="{tmp_path}",'
    names: dict[str, Any] = {"polars": polars, "url": f"{url}/replay-normalized?options={quote(json.dumps(options()))}"}
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {TOKEN}"
    names["requests"] = session
    found = blocks("library.md", "# The library")
    assert len(found) == 3
    for block in found:
        await run(block.replace('exchange="bitmex",', place), names)
    assert names["message"].exchange == "bitmex"
    assert names["trades"].shape[0] > 100
    assert set(names["rows"]["type"]) == {"trade", "book_change"}


async def test_this_library_as_a_client(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = {name: getattr(tardis_machine, name) for name in tardis_machine.__all__}
    found = blocks("clients.md", "## This library")
    assert len(found) == 1
    for block in found:
        await run(block.replace("http://127.0.0.1:8000", url), names)
    assert names["batch"]
    assert [path.name for path in (tmp_path / "datasets").iterdir()] == ["bitmex_trades_2020-02-01_XBTUSD.csv.gz"]


async def test_what_the_functions_for_metadata_say_of_themselves(url: str, tmp_path: Path) -> None:
    names = {name: getattr(tardis_machine, name) for name in tardis_machine.__all__}
    place = f'api_url="{url}/v1", cache_dir="{tmp_path}"'
    for name in ("get_exchange_details", "get_instrument_info", "find_instrument_symbols"):
        examples = [text for text in re.split(r"\n\n", inspect.getdoc(names[name]) or "") if "await" in text]
        assert len(examples) == 1, name
        example = textwrap.dedent(examples[0]).replace('api_key="…"', f'api_key="{TOKEN}", {place}')
        await run(example.replace('("bitmex")', f'("bitmex", {place})'), names)
    assert names["details"]["availableSince"] == "2019-03-30T00:00:00.000Z"
    assert {each["type"] for each in names["perpetuals"]} == {"perpetual"}
