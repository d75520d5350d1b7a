"""A request as others may see it: without its key, and no longer than a page."""

from __future__ import annotations

from tardis_machine.pipeline.request import parse_normalized_request, parse_raw_request
from tardis_machine.player.shown_request import MOST_SHOWN, shown_request

SPAN = {"exchange": "bitmex", "from": "2020-02-01", "to": "2020-02-02", "apiKey": "canary-secret"}


def test_long_lists_are_cut_and_counted() -> None:
    symbols = [f"S{number}" for number in range(MOST_SHOWN + 1)]
    shown = shown_request(parse_normalized_request(SPAN | {"symbols": symbols, "dataTypes": ["trade"]}))
    assert (shown["symbols"], shown["symbolCount"], shown["dataTypes"]) == (symbols[:-1], MOST_SHOWN + 1, ["trade"])
    filters = [{"channel": "trade", "symbols": symbols}, {"channel": "quote"}]
    shown = shown_request(parse_raw_request(SPAN | {"filters": filters}))
    by_channel = {item["channel"]: item for item in shown["filters"]}
    assert by_channel["quote"] == {"channel": "quote"}
    assert (len(by_channel["trade"]["symbols"]), by_channel["trade"]["symbolCount"]) == (MOST_SHOWN, MOST_SHOWN + 1)


def test_a_key_is_not_shown() -> None:
    asked = SPAN | {"dataTypes": ["trade"], "faults": {"drop": 0.5}, "speed": 2}
    shown = shown_request(parse_normalized_request(asked))
    assert shown["faults"]["drop"] == 0.5
    assert "canary" not in str(shown)
