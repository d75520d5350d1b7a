"""Numbers that the JSON parser would round are read as text, digit by digit; all else stays."""

from __future__ import annotations

import orjson
import pytest

from tardis_machine.exchanges._long_numbers import long_numbers_as_text

quote = long_numbers_as_text("id")


@pytest.mark.parametrize("digits", ["9" * 19, "-" + "9" * 19, "98765432101234567891", "1" * 30])
@pytest.mark.parametrize("text", ['{"id":%s}', '{"id" : %s,"a":[1]}', '[{"a":{"id":%s}}]'])
def test_every_digit_is_kept(text: str, digits: str) -> None:
    assert orjson.loads(quote((text % digits).encode())) == orjson.loads(text % f'"{digits}"')


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'{"id":123456789012345678}',
        b'{"id":"98765432101234567891"}',
        b'{"id":null}',
        b'{"id":1234567890123456789.5}',
        b'{"id":1234567890123456789e3}',
        b'{"uid":98765432101234567891}',
        b'{"size":98765432101234567891}',
    ],
)
def test_nothing_else_changes(text: bytes) -> None:
    assert quote(text) == text
