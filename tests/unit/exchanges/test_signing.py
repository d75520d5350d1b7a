"""Signatures of exchanges, against a case of RFC 4231; and what is said of a secret that is none, without telling it."""

from __future__ import annotations

import pytest

from tardis_machine.errors import OptionsError
from tardis_machine.exchanges._signing import read_base64_secret, sign


def test_a_signature_is_hmac_sha256_in_base64() -> None:
    expected = bytes.fromhex("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843")
    assert read_base64_secret("X", sign(b"Jefe", "what do ya want for nothing?")) == expected


@pytest.mark.parametrize("secret", ["not base64!", "YWJ"])
def test_a_secret_that_is_no_base64_is_named_and_not_shown(secret: str) -> None:
    with pytest.raises(OptionsError, match=r"^COINBASE_API_SECRET: expected the base64 text") as caught:
        read_base64_secret("COINBASE_API_SECRET", secret)
    assert secret not in str(caught.value)
