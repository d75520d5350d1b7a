"""The programs in `examples/`, run as their first lines say, against the sample history."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.sample.market import SampleMarket
from tardis_machine.sample.recording import Recording
from tests.integration.machine import running_machine
from tests.servers.process import ROOT


async def run(name: str, *argv: str, cache: Path, within_s: float = 100, **variables: str) -> str:
    """What it prints; it must end well."""
    environ = os.environ | {"XDG_CACHE_HOME": str(cache), "TM_API_KEY": "key"} | variables
    pipe = asyncio.subprocess.PIPE
    program = (sys.executable, ROOT / "examples" / name, *argv)
    process = await asyncio.create_subprocess_exec(*program, env=environ, stdout=pipe, stderr=pipe)
    output, errors = await asyncio.wait_for(process.communicate(), within_s)
    assert process.returncode == 0, errors.decode()
    return output.decode()


async def test_find_symbols(tmp_path: Path) -> None:
    async with SampleHistoryApi(api_key="key") as api:
        said = await run("find_symbols.py", "deribit", api.url, cache=tmp_path)
    assert said.startswith("deribit: since 2019-03-30T00:00:00.000Z, channels ")
    assert " BTC options: BTC-" in said


async def test_arrow_frames(tmp_path: Path) -> None:
    async with SampleHistoryApi() as api, running_machine(api, tmp_path) as client:
        of_machine, without = await asyncio.gather(
            run("arrow_frames.py", client.url(""), cache=tmp_path), run("arrow_frames.py", cache=tmp_path, TM_API_URL=api.url)
        )
    assert of_machine == without
    polars, duckdb, book = of_machine.splitlines()
    assert polars.removeprefix("polars: ") == duckdb.removeprefix("duckdb: ")
    assert polars.count("'00:0") == 5
    assert book.startswith("first book: [(")


async def test_notebook(tmp_path: Path) -> None:
    async with SampleHistoryApi() as api:
        said = await run("notebook.py", cache=tmp_path, TM_API_URL=api.url)
    assert "best bid and ask after two minutes: BookLevel(price=" in said
    assert "\nbuy " in said
    assert said.splitlines()[-1].count("(") == 3


@pytest.mark.timeout(300)
async def test_spark_notebook(tmp_path: Path) -> None:
    recording = Recording(SampleMarket(1, 0.05), disconnects_per_day=0)
    async with SampleHistoryApi(recording, api_key="key") as api:
        said = await run("spark_notebook.py", api.url, cache=tmp_path, within_s=240)
    assert " |-- price: double (nullable = true)" in said
    assert re.search(r"\| *buy\| *\d+\|", said)
    assert re.search(r"\| *ETHUSD\| *2020-02-01 00:01:00\| *\d+\.\d+", said)
