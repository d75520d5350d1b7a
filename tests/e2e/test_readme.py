"""The README is true: its blocks are run one after the other, as a reader would, and what else it names is there.

Each `sh` and `python` block runs in one scratch folder, with the ports and addresses of real servers put in, on sample history. Only
lines of `make` are looked at without being run (`make -n`): what they do is what runs these tests, and what test_demo.py runs.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.exchanges import EXCHANGES
from tardis_machine.sample.cache_dir import fill_cache
from tardis_machine.sample.history_api import SampleHistoryApi
from tardis_machine.sample.market import MINUTE_US, SampleMarket
from tardis_machine.sample.recording import Recording
from tardis_machine.settings.catalogue import Catalogue
from tardis_machine.settings.commands import COMMANDS
from tests.integration.served import FEBRUARY_US, FILTERS
from tests.servers.elasticmq import ElasticMqServer
from tests.servers.kafka import KafkaServer
from tests.servers.kinesalite import KinesaliteServer
from tests.servers.nats import NatsServer
from tests.servers.process import ROOT, free_port
from tests.servers.redis import RedisServer
from tests.spark.conftest import SMALL_DATA_CONF

README = (ROOT / "README.md").read_text()
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PROSE = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
INLINE: list[str] = re.findall(r"`([^`]+)`", PROSE)
# So quiet that an hour goes through every bus in seconds.
ACTIVITY = 0.01
# For little data, and jobs of seconds: compiling costs them more than it gains.
FOR_SPARK = {
    "TM_SPARK_CONF": ",".join(f"{name}={value}" for name, value in SMALL_DATA_CONF.items()),
    "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1",
    # What the README asks the lake for.
    "TM_GOLD": "bars_1m",
}


def is_of_make(block: str) -> bool:
    return block.startswith("make ")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the reader is: beside the environment that the set-up made. The cache has what the library asks for."""
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    recording = Recording(SampleMarket(activity=ACTIVITY))
    fill_cache(
        tmp_path / ".cache" / "tardis-machine", "bitmex", FILTERS, FEBRUARY_US, FEBRUARY_US + 5 * MINUTE_US, recording=recording
    )
    return tmp_path


@pytest.fixture
def addresses(own_server: Callable[[type[Any]], Any]) -> Mapping[str, str]:
    """What stands in the README, and what takes its place; the destinations are there, as a reader's would be."""
    from confluent_kafka.admin import AdminClient, NewTopic

    kafka, redis, nats = own_server(KafkaServer), own_server(RedisServer), own_server(NatsServer)
    kinesis, sqs = own_server(KinesaliteServer), own_server(ElasticMqServer)
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic("events", 3, 1)])["events"].result(30)
    kinesis.create_stream("events")
    return {
        "8000": str(free_port()),
        "localhost:9092": kafka.address,
        "6379": str(redis.port),
        "nats://localhost:4222": nats.url,
        "--kinesis-stream": f"--kinesis-endpoint-url {kinesis.url} --kinesis-stream",
        "https://sqs.eu-west-1.amazonaws.com/123456789012/events": sqs.create_queue("events"),
    }


@pytest.fixture
def environ(folder: Path) -> Iterator[dict[str, str]]:
    """A user's, with a home of its own and the sample market for a history API."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TM_", "XDG_", "AWS_")) and name != "PORT"}
    aws = {"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "s3cr3t", "AWS_DEFAULT_REGION": "eu-west-1"}
    with SampleHistoryApi(SampleMarket(activity=ACTIVITY)).serve_in_thread() as api:
        yield clean | aws | {"HOME": str(folder), "TMPDIR": str(folder), "TM_API_URL": api.url} | FOR_SPARK


def run_block(language: str, text: str, folder: Path, environ: Mapping[str, str]) -> str:
    """What it prints; it must end well, and whatever it starts must end too."""
    program = {"sh": ["bash", "-euo", "pipefail", "-c", text], "python": [".venv/bin/python", "-c", text]}[language]
    process = subprocess.Popen(
        program,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, f"{text}\n{printed}"
    return printed


@pytest.mark.timeout(900)
def test_every_block_runs(folder: Path, addresses: Mapping[str, str], environ: dict[str, str]) -> None:
    printed = []
    for language, text in BLOCKS:
        if not language or is_of_make(text):
            continue
        for said, meant in addresses.items():
            text = text.replace(said, meant)
        printed.append(run_block(language, text, folder, environ))
    curl, python, replays, doctor, lake = printed
    assert len(re.findall(r'^\{"type":"trade_bar",.*"interval":60000', curl, re.MULTILINE)) == 4
    assert re.search(r"^2020-02-01T00:0\d:\S+Z XBTUSD (buy|sell) \d+ \d+", python, re.MULTILINE)
    published = re.findall(r"^(\w+): (\d+) published, (\d+) confirmed", replays, re.MULTILINE)
    assert [bus for bus, _, _ in published] == ["file", "kafka", "redis", "nats", "kinesis", "sqs"]
    assert len({count for _, *counts in published for count in counts}) == 1
    assert "All checks passed: kafka." in doctor
    assert "Nothing is missing." in lake
    assert (folder / "bars.png").stat().st_size > 10_000


def test_every_line_of_make_is_one_that_make_knows() -> None:
    lines = [line for _, text in BLOCKS if is_of_make(text) for line in text.splitlines()]
    lines += [text for text in INLINE if text.startswith("make ")]
    assert len(lines) > 5
    for line in lines:
        assert re.match(r"make [a-z]+( |$)", line), line
        program = line.replace("make ", "make --dry-run ", 1)
        done = subprocess.run(["bash", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stderr}"


def test_every_command_and_option_in_the_prose_is_there() -> None:
    known = {flag for name in COMMANDS for flag in flags_of(name)}
    for text in INLINE:
        if text.startswith("tardis-machine "):
            words = text.split()[1:]
            assert words[0] in COMMANDS or " ".join(words[:2]) in COMMANDS, text
        elif text.startswith("lake "):
            assert text in COMMANDS, text
        assert set(re.findall(r"--[a-z][a-z-]+[a-z]", text)) - {"--write"} <= known, text


def flags_of(name: str) -> set[str]:
    catalogue = Catalogue(COMMANDS[name])
    catalogue.load_all()
    return {option.flag for option in catalogue.options}


def test_every_exchange_that_it_names_is_there() -> None:
    (names,) = re.findall(r"^\| exchanges \| (.+) and others", README, re.MULTILINE)
    assert {name.lower().replace("okx", "okex") for name in names.split(", ")} <= set(EXCHANGES)


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", PROSE)
    assert len(links) > 10
    assert not [link for link in links if not (ROOT / link).exists()]
