"""The parsers of options: what they take, what they refuse, and that what they return can be written back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tardis_machine.eventbus.options import template
from tardis_machine.settings import (
    Option,
    duration,
    duration_ms,
    hosts,
    integer,
    items,
    pairs,
    path,
    size_bytes,
    switch,
    text,
    url,
)
from tardis_machine.settings.option import mask, secrets_in, to_text

names = items(str, takes="names")

UNKNOWN_PLACEHOLDER = (
    "{{exchnge}} is not a placeholder; expected "
    "{{exchange}}, {{symbol}}, {{payloadCase}}, {{dataType}}, {{source}}, {{origin}} or {{meta.NAME}}"
)


@pytest.mark.parametrize(
    ("parse", "given_text", "value"),
    [
        (integer(1, 9), "9", 9),
        (integer(-5), "-5", -5),
        (size_bytes(), "67108864", 67108864),
        (size_bytes(), "64MiB", 64 * 1024**2),
        (size_bytes(), "4 gib", 4 * 1024**3),
        (size_bytes(), "1.5GB", 1_500_000_000),
        (size_bytes(), "0", 0),
        (duration(), "5", 5.0),
        (duration(), "500ms", 0.5),
        (duration(), "1m", 60.0),
        (duration(), "1.5h", 5400.0),
        (duration(), "250us", 0.00025),
        (duration_ms(), "250", 250),
        (duration_ms(), "5s", 5000),
        (duration_ms(), "1.5s", 1500),
        (switch, "YES", True),
        (switch, "0", False),
        (path, "~/x", Path.home() / "x"),
        (url("http", "https"), "http://127.0.0.1:80/v1", "http://127.0.0.1:80/v1"),
        (hosts(9092), "a,b:9093, [::1]:1", ("a:9092", "b:9093", "[::1]:1")),
        (names, "a, b ,c", ("a", "b", "c")),
        (names, '\'a,b\',"c""d"', ("a,b", 'c"d')),
        (names, "", ()),
        (pairs(), "trade:trades,bookChange:books", {"trade": "trades", "bookChange": "books"}),
        (pairs(), 'team:"desk, 2", link:http://x:80/', {"team": "desk, 2", "link": "http://x:80/"}),
        (pairs(), "a:'it''s',b:", {"a": "it's", "b": ""}),
        (pairs(), "'a:b':c", {"a:b": "c"}),
        (pairs("="), "debug=broker,topic,acks=1", {"debug": "broker,topic", "acks": "1"}),
        (pairs("="), 'a="x,b=y",c=', {"a": "x,b=y", "c": ""}),
        (template, "{{exchange}}.{{ meta.request_id }}", "{{exchange}}.{{ meta.request_id }}"),
    ],
)
def test_reads(parse: Callable[[str], Any], given_text: str, value: object) -> None:
    assert parse(given_text) == value
    assert type(parse(given_text)) is type(value)


@pytest.mark.parametrize(
    ("parse", "given_text", "message"),
    [
        (integer(1, 9), "10", "expected a whole number from 1 to 9"),
        (integer(1), "", "expected a whole number of 1 or more"),
        (integer(1), "1.0", "expected a whole number of 1 or more"),
        (size_bytes(), "64M", "expected a size, such as 67108864, 64MiB or 4GiB"),
        (size_bytes(1), "0", "expected a size above 0, such as 67108864, 64MiB or 4GiB"),
        (size_bytes(), "0.5", "expected a size, such as 67108864, 64MiB or 4GiB"),
        (size_bytes(), "-1", "expected a size, such as 67108864, 64MiB or 4GiB"),
        (duration(), "inf", "expected a duration, such as 5s, 500ms or 1m (a bare number is seconds)"),
        (duration(1, 2), "3s", "expected a duration from 1s to 2s, such as 5s, 500ms or 1m (a bare number is seconds)"),
        (duration_ms(1), "0", "expected whole milliseconds of 1ms or more, such as 250, 500ms or 5s"),
        (duration_ms(), "1us", "expected whole milliseconds, such as 250, 500ms or 5s"),
        (switch, "maybe", "expected true or false"),
        (text(), " ", "expected a non-empty line of text"),
        (text(), "a\nb", "expected a non-empty line of text"),
        (path, "", "expected a path"),
        (url("http"), "https://x", "expected a URL that starts with http:// and has a host"),
        (url("http"), "http://", "expected a URL that starts with http:// and has a host"),
        (url("http"), "http://x:99999", "expected a URL that starts with http:// and has a host"),
        (url("http"), "http://[x", "expected a URL that starts with http:// and has a host"),
        (hosts(9092), "a:0", "expected host:port, separated by commas (the port is 9092 if left out)"),
        (hosts(9092), "http://a", "expected host:port, separated by commas (the port is 9092 if left out)"),
        (names, "a,,b", "expected names"),
        (names, "a,", "expected names"),
        (names, "'a", "a quote is not closed"),
        (names, "'a'b", "text follows a closing quote"),
        (pairs(), "a", "expected name:value pairs separated by commas (quote a value that holds a comma)"),
        (pairs(), ":b", "expected name:value pairs separated by commas (quote a value that holds a comma)"),
        (pairs(), "a:b,", "expected name:value pairs separated by commas (quote a value that holds a comma)"),
        (pairs(), "a:b,a:c", "'a' is given twice"),
        (pairs("="), "a,b=c", "expected name=value pairs separated by commas (quote a value that holds a comma)"),
        (pairs("="), 'a="b",c', "expected name=value pairs separated by commas (quote a value that holds a comma)"),
        (template, "{{exchnge}}", UNKNOWN_PLACEHOLDER),
        (template, "{{exchange}", "double braces do not match"),
        (template, "", "expected text with {{placeholders}}"),
    ],
)
def test_refuses(parse: Callable[[str], Any], given_text: str, message: str) -> None:
    with pytest.raises(ValueError) as refusal:
        parse(given_text)
    assert str(refusal.value) == message


@settings(deadline=None)
@given(st.dictionaries(st.text(), st.text()), st.sampled_from(":="))
@example({"": ""}, ":")
@example({"a,b": '"', "'": " x "}, "=")
def test_every_mapping_can_be_written_and_read_back(value: dict[str, str], separator: str) -> None:
    assert pairs(separator)(to_text(value, separator)) == value


@settings(deadline=None)
@given(st.lists(st.text()))
def test_every_list_can_be_written_and_read_back(value: list[str]) -> None:
    assert names(to_text(value)) == tuple(value)


@settings(deadline=None)
@given(st.text(alphabet="ab,:='\" \t"), st.sampled_from([pairs(), pairs("="), names]))
def test_no_text_makes_a_parser_fail_otherwise_than_by_refusing(given_text: str, parse: Callable[[str], Any]) -> None:
    try:
        value = parse(given_text)
    except ValueError:
        return
    assert parse(to_text(value, getattr(parse, "separator", ""))) == value


@settings(deadline=None)
@given(st.integers(0, 2**50))
def test_every_size_is_shown_so_that_it_reads_back(value: int) -> None:
    option = Option(name="size", help="A size", group="server", parse=size_bytes())
    assert option.read(option.show(value)) == value


@settings(deadline=None)
@given(st.integers(0, 10**12))
def test_every_duration_is_shown_so_that_it_reads_back(microseconds: int) -> None:
    option = Option(name="pause", help="A pause", group="server", parse=duration())
    value = microseconds / 1_000_000
    assert option.read(option.show(value)) == value


@pytest.mark.parametrize(
    ("shown", "masked"),
    [
        ("redis://user:pass@host:1/0", "redis://user:***@host:1/0"),
        ("redis://:p@ss/w,ord@host", "redis://:***@host"),
        ("nats://token@host", "nats://***@host"),
        ("nats://a:1@h,nats://b:2@i", "nats://a:***@h,nats://b:***@i"),
        ("http://host:80/path", "http://host:80/path"),
        ("http://host/?password=x&db=1", "http://host/?password=***&db=1"),
        ("sasl.password=x y,client.id=me", "sasl.password=***,client.id=me"),
        ('authorization:"Bearer a,b",team:desk', "authorization:***,team:desk"),
        ("secret", "secret"),
    ],
)
def test_masks_passwords(shown: str, masked: str) -> None:
    assert mask(shown) == masked


@settings(deadline=None)
@given(st.text(alphabet="aB1%/,:=&?#'\" ", min_size=1))
def test_a_password_in_a_url_is_never_shown(password: str) -> None:
    assume(password.strip() == password and password not in "redis://me:***@h")
    shown = f"redis://me:{password}@h"
    assert password not in mask(shown)
    assert password in secrets_in(shown)
