"""Credentials of live feeds: which are found where, and that none is told."""

from __future__ import annotations

import pytest

from tardis_machine.errors import OptionsError
from tardis_machine.exchanges import EXCHANGES, Credentials
from tardis_machine.filters import Filter
from tardis_machine.realtime.accounts import check_credentials, find_credentials
from tardis_machine.telemetry import redact

COINBASE = {
    "COINBASE_API_KEY": "key-of-mine",
    "COINBASE_API_SECRET": "c2VjcmV0IG9mIG1pbmU=",
    "COINBASE_API_PASSPHRASE": "my phrase",
}
DERIBIT = {"DERIBIT_API_CLIENT_ID": "client-of-mine", "DERIBIT_API_CLIENT_SECRET": "secret-of-mine"}


def test_what_was_given_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DERIBIT_API_CLIENT_ID", "client-of-the-environment")
    monkeypatch.setenv("DERIBIT_API_CLIENT_SECRET", "secret-of-the-environment")
    found = find_credentials("deribit", {"DERIBIT_API_CLIENT_ID": "client-of-mine"})
    assert found == {"DERIBIT_API_CLIENT_ID": "client-of-mine", "DERIBIT_API_CLIENT_SECRET": "secret-of-the-environment"}
    assert find_credentials("bitmex", DERIBIT) == {}


def test_no_log_shows_a_secret_but_flags_are_words_like_others() -> None:
    found = find_credentials("okex", {"OKX_API_KEY": "key-of-an-okx-account", "OKX_API_VIP_5": "yes"})
    assert redact(f"{found['OKX_API_KEY']} yes") == "*** yes"
    assert "key-of-an-okx-account" not in f"{found} {found!r}"


def test_a_name_that_no_feed_knows_is_refused() -> None:
    with pytest.raises(OptionsError, match=r"^exchange-credentials: expected COINBASE_API_KEY, .*, got 'COINBASE_KEY'$"):
        check_credentials({"COINBASE_KEY": "x"})
    assert check_credentials(COINBASE) == COINBASE


@pytest.mark.parametrize(
    ("exchange", "credentials", "url"),
    [
        ("coinbase", COINBASE, "wss://ws-direct.exchange.coinbase.com"),
        ("coinbase", {"COINBASE_API_KEY": "alone"}, ""),
        ("deribit", DERIBIT, "wss://www.deribit.com"),
        ("deribit", {}, ""),
    ],
)
def test_accounts_have_an_address_of_their_own(exchange: str, credentials: dict[str, str], url: str) -> None:
    live = EXCHANGES[exchange].live
    assert live is not None
    feed = live.feed(exchange, [Filter("match", ["BTC-USD"])], Credentials(credentials))
    assert feed.handshake(None, 0).base_url == url
