"""Addresses: an exchange's own, or what takes their place."""

from __future__ import annotations

import pytest

from tardis_machine.errors import OptionsError
from tardis_machine.exchanges import EXCHANGES, Handshake
from tardis_machine.realtime.endpoints import check_urls, rest_url, socket_url


def test_an_override_takes_the_place_of_the_base_alone() -> None:
    live = EXCHANGES["binance"].live
    assert live is not None
    path = "/stream?timeUnit=MICROSECOND"
    assert socket_url("binance", live, Handshake(path), {}) == f"wss://stream.binance.com:9443{path}"
    elsewhere = Handshake(path, "wss://elsewhere.example/")
    assert socket_url("binance", live, elsewhere, {}) == f"wss://elsewhere.example{path}"
    urls = check_urls({"binance": "ws://127.0.0.1:1/x/", "binance-rest": "http://127.0.0.1:2"})
    for handshake in (Handshake(path), elsewhere):
        assert socket_url("binance", live, handshake, urls) == f"ws://127.0.0.1:1/x{path}"
    assert rest_url("binance", live, "/api/v3/depth", urls) == "http://127.0.0.1:2/api/v3/depth"
    assert rest_url("binance", live, "/api/v3/depth", {}) == "https://api.binance.com/api/v3/depth"


@pytest.mark.parametrize(
    ("name", "url", "problem"),
    [
        ("nowhere", "ws://x", "expected an exchange that has live data"),
        ("binance-jersey", "ws://x", "expected an exchange that has live data"),
        ("bitmex-rest", "http://x", "uses no REST API"),
        ("bitmex", "http://x", "expected a URL that starts with ws:// or wss://"),
        ("binance-rest", "ws://x", "expected a URL that starts with http:// or https://"),
        ("bitmex", "ws://", "expected a URL"),
    ],
)
def test_what_is_wrong_is_said(name: str, url: str, problem: str) -> None:
    with pytest.raises(OptionsError, match=problem):
        check_urls({name: url})
