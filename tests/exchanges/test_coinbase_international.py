"""Coinbase International's signed calls; all else is in its transcript."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

import pytest

from tardis_machine.exchanges import EXCHANGES, Credentials, Feed
from tardis_machine.filters import Filter

SECRET = base64.b64encode(b"sesame").decode()
CREDENTIALS = {
    "COINBASE_INTERNATIONAL_API_KEY": "the-key",
    "COINBASE_INTERNATIONAL_API_SECRET": SECRET,
    "COINBASE_INTERNATIONAL_API_PASSPHRASE": "open",
}


def feed(credentials: dict[str, str]) -> Feed:
    live = EXCHANGES["coinbase-international"].live
    assert live is not None
    filters = [Filter("MATCH", ["BTC-PERP"]), Filter("LEVEL2", ["BTC-PERP"])]
    return live.feed("coinbase-international", filters, Credentials(credentials))


def test_every_call_is_signed() -> None:
    calls = [json.loads(frame) for frame in feed(CREDENTIALS).subscribe(1_790_000_000_999_999) if isinstance(frame, str)]
    signature = hmac.new(b"sesame", b"1790000000the-keyCBINTLMDopen", hashlib.sha256).digest()
    assert calls == [
        {
            "type": "SUBSCRIBE",
            "product_ids": ["BTC-PERP"],
            "channels": [channel],
            "signature": base64.b64encode(signature).decode(),
            "key": "the-key",
            "time": 1790000000,
            "passphrase": "open",
        }
        for channel in ("MATCH", "LEVEL2")
    ]


@pytest.mark.parametrize("missing", CREDENTIALS)
def test_a_call_is_not_signed_by_half(missing: str) -> None:
    given = {name: value for name, value in CREDENTIALS.items() if name != missing}
    calls = [json.loads(frame) for frame in feed(given).subscribe(0) if isinstance(frame, str)]
    assert [set(call) for call in calls] == [{"type", "product_ids", "channels"}] * 2


def test_a_rejection_says_what_is_missing_or_what_the_exchange_said() -> None:
    message = {"type": "REJECT", "reason": "Rate limit exceeded"}
    assert feed(CREDENTIALS).error(message) == ("rate_limit", "Rate limit exceeded", False)
    kind, details, _ = feed({}).error(message)
    assert (kind, details.count("COINBASE_INTERNATIONAL_API_")) == ("auth", 3)
