"""The options of Kinesis and SQS, as the command line, the environment, a file and keywords spell them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tardis_machine.commands.config import report_text
from tardis_machine.errors import SettingsError
from tardis_machine.eventbus import plan_bus
from tardis_machine.eventbus.publisher import BusPlan
from tardis_machine.settings import Settings, from_keywords, resolve

SECRET = "wJalrXUtnFEMI/K7MDENG"
QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/events"


def test_the_same_by_flag_variable_file_and_keyword(tmp_path: Path) -> None:
    conf = tmp_path / "conf.toml"
    conf.write_text('[kinesis]\nstream-name = "events"\nregion = "eu-west-1"\nstream-routing = { trade = "trades" }\n')
    given = [
        resolve(["--kinesis-stream-name", "events", "--kinesis-region=eu-west-1", "--kinesis-stream-routing=trade:trades"], {}),
        resolve(
            [], {"TM_KINESIS_STREAM": "events", "TM_KINESIS_REGION": "eu-west-1", "TM_KINESIS_STREAM_ROUTING": "trade:trades"}
        ),
        resolve(["--config", str(conf)], {}),
        from_keywords({"kinesis": {"stream": "events", "region": "eu-west-1", "stream_routing": {"trade": "trades"}}}, {}),
        from_keywords(
            {"event_bus": {"provider": "kinesis", "stream": "events", "region": "eu-west-1", "stream-routing": "trade:trades"}},
            {},
        ),
    ]
    folders = ("dead_letter_dir",)
    found = [{name: value for name, value in settings.for_bus("kinesis").items() if name not in folders} for settings in given]
    assert all(options == found[0] for options in found)
    assert found[0]["routing"] == {"trade": "trades"}


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--kinesis-region", "eu-west-1"], "--kinesis-stream is required when --kinesis-region is given"),
        (["--sqs-region", "eu-west-1"], "--sqs-queue-url is required when --sqs-region is given"),
        (["--kinesis-stream", "a", "--kinesis-max-batch-size", "501"], "from 1 to 500"),
        (["--kinesis-stream", "a", "--kinesis-order", "sometimes"], "key, call or none"),
        (["--sqs-queue-url", QUEUE, "--sqs-max-batch-size", "11"], "from 1 to 10"),
        (["--sqs-queue-url", QUEUE, "--sqs-max-message-bytes", "2MiB"], "from 1024 to 1048576 bytes"),
        (["--sqs-queue-url", QUEUE, "--sqs-static-message-attributes", "eventId:1"], "'eventId' can't be set"),
        (["--sqs-queue-url", QUEUE, "--sqs-queue-routing", "candles:x"], "'candles'"),
    ],
)
def test_what_is_wrong_is_said_by_name(argv: list[str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        resolve(argv, {})


def plan(prefix: str, **keywords: Any) -> BusPlan:
    return plan_bus(prefix, from_keywords({prefix: keywords}, {}).for_bus(prefix))


def test_a_queue_says_where_it_is() -> None:
    for url, region, endpoint in (
        (QUEUE, "eu-west-1", None),
        ("https://vpce-1.sqs.us-east-2.vpce.amazonaws.com/1/q", "us-east-2", "https://vpce-1.sqs.us-east-2.vpce.amazonaws.com"),
        ("http://localhost:9324/000000000000/q", "ap-east-1", "http://localhost:9324"),
    ):
        keywords = {"queue-url": url} | ({"region": region} if "localhost" in url else {})
        access = plan("sqs", **keywords).bus._access  # type: ignore[attr-defined]
        assert (access.region, access.client_options(1)["endpoint_url"]) == (region, endpoint)


def test_ten_attributes_are_taken_and_eleven_are_not() -> None:
    five = {f"a{number}": "x" for number in range(5)}
    plan("sqs", **{"queue-url": QUEUE, "static-attributes": five, "attributes": "b:{{symbol}},c:{{exchange}}"})
    says = "SQS accepts 10 attributes a message, but there are 11: payloadCase, dataType, eventId, 8 of your own"
    with pytest.raises(SettingsError, match=says):
        plan("sqs", **{"queue-url": QUEUE, "static-attributes": five, "attributes": "b:1,c:2,d:3"})
    with pytest.raises(SettingsError, match=r"there are 11: .* 3 of your own and 5 of the request's meta"):
        plan("sqs", **{"queue-url": QUEUE, "attributes": "b:1,c:2,d:3", "meta-headers-prefix": "m-"})


def test_secrets_are_shown_nowhere() -> None:
    flags = [f"--{bus}-{name}={SECRET}-{name}" for bus in ("kinesis", "sqs") for name in ("secret-access-key", "session-token")]
    keys = ["--kinesis-access-key-id=AKIA1", "--sqs-access-key-id=AKIA1"]
    settings: Settings = resolve(["--kinesis-stream=a", "--kinesis-region=x", f"--sqs-queue-url={QUEUE}", *keys, *flags], {})
    shown = [repr(settings), report_text(settings)]
    shown += [repr(vars(plan_bus(bus, settings.for_bus(bus)).bus)) for bus in ("kinesis", "sqs")]
    for text in shown:
        assert SECRET not in text
        assert "AKIA1" not in text
