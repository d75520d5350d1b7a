"""Requests are read strictly: whatever comes, it is a request or one sentence about one field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.errors import OptionsError
from tardis_machine.pipeline.request import (
    NormalizedRequest,
    RawRequest,
    parse_normalized_request,
    parse_normalized_requests,
    parse_raw_request,
    parse_since_request,
    parse_stream_request,
    parse_stream_requests,
)

RAW = {"exchange": "bitmex", "from": "2020-01-01", "to": "2020-01-02T00:00:01.5Z"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda c: st.lists(c) | st.dictionaries(st.text(), c),
    max_leaves=8,
)
NAMES = ["exchange", "from", "to", "filters", "symbols", "dataTypes", "apiKey", "autoCleanup", "withDisconnects"]


def test_a_raw_request_is_read() -> None:
    asked = RAW | {
        "filters": [{"channel": "trade", "symbols": ["XBTUSD"]}, {"channel": "chat"}],
        "waitWhenDataNotYetAvailable": 10,
    }
    request = parse_raw_request(asked)
    assert (request.to_us - request.from_us) / 1e6 == 86_401.5
    assert [item.channel for item in request.filters] == ["trade", "chat"]
    assert request.wait_when_data_not_yet_available == 10


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"filters": {}}, "filters"),
        ({"filters": ["trade"]}, "filters[0]"),
        ({"filters": [{"channel": "trades"}]}, "filters[0].channel"),
        ({"filters": [{"channel": "trade", "symbols": "XBTUSD"}]}, "filters[0].symbols"),
        ({"apiKey": 5}, "apiKey"),
        ({"autoCleanup": 1}, "autoCleanup"),
        ({"waitWhenDataNotYetAvailable": -1}, "waitWhenDataNotYetAvailable"),
        ({"from": "2020-13-01"}, "from"),
        ({"from": None}, "from"),
    ],
)
def test_a_mistake_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(OptionsError) as caught:
        parse_raw_request(RAW | change)
    assert caught.value.field == field
    assert str(caught.value).startswith(field)


def test_fields_that_are_not_known_are_ignored_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    odd = RAW | {"dataTypez": ["trade"], "filters": [{"channel": "trade", "symbolz": ["XBTUSD"]}]}
    assert parse_raw_request(odd) == parse_raw_request(RAW | {"filters": [{"channel": "trade"}]})
    parse_raw_request(odd)
    told = [record.__dict__["fields"] for record in caplog.records]
    assert told == [{"field": "'dataTypez'", "nearest": "none"}, {"field": "'symbolz'", "nearest": "symbols"}]


def test_an_api_key_is_never_repeated() -> None:
    with pytest.raises(OptionsError) as caught:
        parse_raw_request(RAW | {"apiKey": ["canary-secret"]})
    assert "canary" not in str(caught.value)


@given(st.dictionaries(st.sampled_from(NAMES) | st.text(), JSON) | JSON)
def test_anything_is_a_request_or_a_sentence(options: Any) -> None:
    for parse in (parse_raw_request, parse_normalized_requests):
        for asked in (options, RAW | options if isinstance(options, dict) else [options]):
            problem: OptionsError | None = None
            try:
                parsed = parse(asked)
            except OptionsError as error:
                problem = error
            if problem is not None:
                assert problem.field
                assert len(str(problem)) < 4000
            else:
                assert isinstance(parsed, RawRequest) or all(isinstance(item, NormalizedRequest) for item in parsed)


def test_stream_requests() -> None:
    request = parse_stream_request({"exchange": "bitmex", "dataTypes": ["quote"], "symbols": ["XBTUSD"], "timeoutIntervalMS": 0})
    assert (request.timeout_interval_ms, request.with_error_messages) == (0, False)
    assert parse_stream_request({"exchange": "bitmex", "dataTypes": ["trade"]}).timeout_interval_ms == 10_000
    with pytest.raises(OptionsError, match=r"\[1\]\.symbols: live data of kraken needs at least one symbol"):
        parse_stream_requests([{"exchange": "bitmex", "dataTypes": ["trade"]}, {"exchange": "kraken", "dataTypes": ["trade"]}])
    with pytest.raises(OptionsError, match="dataTypes: kraken has no liquidation"):
        parse_stream_request({"exchange": "kraken", "symbols": ["BTC/USD"], "dataTypes": ["liquidation"]})


@pytest.mark.parametrize(
    ("parse", "fields", "field"),
    [
        (parse_normalized_request, {"symbols": ["XBTUSD", "X" * 1001], "dataTypes": ["trade"]}, "symbols"),
        (parse_normalized_request, {"dataTypes": ["trade" * 201]}, "dataTypes"),
        (parse_raw_request, {"filters": [{"channel": "trade", "symbols": ["X" * 1001]}]}, "filters[0].symbols"),
    ],
)
def test_a_name_is_not_longer_than_any_venue_has_one(parse: Any, fields: dict[str, Any], field: str) -> None:
    options = {"exchange": "bitmex", "from": "2020-02-01", "to": "2020-02-02", **fields}
    with pytest.raises(OptionsError, match=r"expected texts of at most 1000 characters, got one of 100") as refused:
        parse(options)
    assert refused.value.field == field


def test_a_request_that_goes_on_may_not_begin_at_the_end_of_all_dates() -> None:
    asked = {"exchange": "bitmex", "symbols": ["XBTUSD"], "dataTypes": ["trade"], "from": "9999-12-31T23:59:59.999Z"}
    with pytest.raises(OptionsError, match=r"^from: expected a date up to 9999-12-31, got 9999-12-31T23:59:59\.999Z$"):
        parse_since_request(asked)
