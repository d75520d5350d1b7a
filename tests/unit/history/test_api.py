"""What needs no server: how long to wait, and which settings are refused."""

from __future__ import annotations

import pytest

from tardis_machine.errors import OptionsError, SettingsError
from tardis_machine.history.api import RetryPolicy, UpstreamRequest, check_api_key
from tardis_machine.history.client import HistoryClient


@pytest.mark.parametrize(
    ("attempt", "status", "least_s"),
    [
        (1, None, 2),
        (2, 503, 4),
        (6, None, 64),
        (7, None, 120),
        (29, None, 120),
        (1, 429, 62),
        (8, 429, 180),
        (1, 500, 4),
        (8, 500, 240),
    ],
)
def test_delays(attempt: int, status: int | None, least_s: float) -> None:
    delays = [RetryPolicy().to_delay_s(attempt, status) for _ in range(200)]
    assert least_s <= min(delays)
    assert max(delays) <= least_s + (1.0 if status == 500 else 0.5)
    assert len(set(delays)) > 100


def test_delays_scale() -> None:
    assert 0.002 <= RetryPolicy(backoff_scale=0.001).to_delay_s(1, None) <= 0.0025


@pytest.mark.parametrize(
    "url", ["", "api.tardis.dev", "ftp://api.tardis.dev", "http://", "https://user:hunter2@host/v1", "http://h/v1?key=hunter2"]
)
def test_refuses_an_api_url_without_showing_secrets(url: str) -> None:
    with pytest.raises(SettingsError, match="api-url: expected") as caught:
        HistoryClient(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", ["a b", "a\r\nX-Evil: 1", "schlüssel", "a\x7f"])
def test_refuses_a_key_that_can_not_stand_in_a_header_without_showing_it(key: str) -> None:
    with pytest.raises(OptionsError, match="apiKey: expected") as caught:
        check_api_key(key)
    assert key not in str(caught.value)
    with pytest.raises(OptionsError):
        HistoryClient(api_key=key)


def test_an_empty_key_is_none() -> None:
    assert check_api_key("") is None
    assert check_api_key("TD.abc-123_x") == "TD.abc-123_x"


def test_a_request_shows_no_key() -> None:
    assert "hunter2" not in repr(UpstreamRequest("bitmex", 0, 0, 1, (), "hunter2"))
