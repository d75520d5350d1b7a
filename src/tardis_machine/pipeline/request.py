"""What can be asked for, validated before anything is fetched.

Invariant: a request that exists is right. Every mistake is an OptionsError that names the field as the client wrote it, what it got and
what it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from ..brief import brief
from ..computed.book_snapshot import BookSnapshots
from ..computed.data_types import parse_data_types
from ..dates import parse_date_us
from ..errors import OptionsError
from ..exchanges import DATA_TYPES, Exchange, exchange_named
from ..filters import Filter, merge_filters
from ..telemetry import get_logger
from .limits import RequestLimits
from .playback import FIELDS as PLAYBACK_FIELDS
from .playback import Playback, agreed_playback, parse_playback

__all__ = [
    "NormalizedRequest",
    "RawRequest",
    "RawStreamRequest",
    "SinceRequest",
    "StreamRequest",
    "parse_book_request",
    "parse_normalized_request",
    "parse_normalized_requests",
    "parse_raw_request",
    "parse_raw_stream_request",
    "parse_replay_requests",
    "parse_since_request",
    "parse_stream_request",
    "parse_stream_requests",
]

log = get_logger("requests")

DEFAULT_TIMEOUT_MS = 10_000
MOST_CHARACTERS = 1000
"""In the name of a symbol or a data type: several times what any venue has, and no burden however often it is copied."""


class RawRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A replay in the exchange's own format."""

    exchange: str
    from_us: int
    to_us: int
    filters: Sequence[Filter] = ()
    with_disconnects: bool = False
    api_key: str | None = None
    auto_cleanup: bool = False
    wait_when_data_not_yet_available: bool | float = False
    playback: Playback = Playback()


class NormalizedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A replay as normalized messages."""

    exchange: str
    from_us: int
    to_us: int
    data_types: Sequence[str]
    symbols: Sequence[str] | None = None
    with_disconnect_messages: bool = False
    api_key: str | None = None
    auto_cleanup: bool = False
    wait_when_data_not_yet_available: bool | float = False
    publish: bool = True
    """Whether it goes to the buses that are on; one of several requests that are merged speaks for all."""
    playback: Playback = Playback()


class StreamRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Live data as normalized messages."""

    exchange: str
    data_types: Sequence[str]
    symbols: Sequence[str] | None = None
    with_disconnect_messages: bool = False
    with_error_messages: bool = False
    timeout_interval_ms: float = DEFAULT_TIMEOUT_MS
    """How long a connection may be without data; 0: for ever."""
    publish: bool = True
    """Whether it goes to the buses that are on."""


class SinceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A replay that goes on live: what of it is history, which has no end of its own, and what is heard then."""

    history: NormalizedRequest
    live: StreamRequest


LIVE = "live"
"""As the end of a request: there is none. To leave the end out says the same."""

# The last day that there are dates to count with: the end of a history that goes on.
_NEVER_US = 253_402_214_400_000_000


_COMMON = {"exchange", "from", "to", "apiKey", "autoCleanup", "waitWhenDataNotYetAvailable", *PLAYBACK_FIELDS}
_RAW = _COMMON | {"filters", "withDisconnects"}
_NORMALIZED = _COMMON | {"symbols", "dataTypes", "withDisconnectMessages", "publish"}
_SINCE = _NORMALIZED | {"timeoutIntervalMS", "withErrorMessages"}
_STREAM = {"exchange", "symbols", "dataTypes", "withDisconnectMessages", "withErrorMessages", "timeoutIntervalMS", "publish"}


def parse_raw_request(options: Any, limits: RequestLimits | None = None) -> RawRequest:
    """A raw request from its JSON options, within limits where there are some."""
    fields = _Fields(options, _RAW, limits)
    exchange = fields.exchange()
    return RawRequest(
        filters=fields.filters(exchange),
        with_disconnects=fields.flag("withDisconnects"),
        **fields.common(exchange),
    )


def parse_normalized_request(options: Any, limits: RequestLimits | None = None, prefix: str = "") -> NormalizedRequest:
    """A normalized request from its JSON options."""
    fields = _Fields(options, _NORMALIZED, limits, prefix)
    exchange = fields.exchange()
    return NormalizedRequest(
        data_types=fields.data_types(exchange),
        symbols=fields.symbols(),
        with_disconnect_messages=fields.flag("withDisconnectMessages"),
        publish=fields.flag("publish", default=True),
        **fields.common(exchange),
    )


def parse_normalized_requests(options: Any, limits: RequestLimits | None = None) -> list[NormalizedRequest]:
    """One request, or an array of them to be merged."""
    requests = _one_or_many(options, limits, parse_normalized_request)
    agreed_playback([request.playback for request in requests])
    return requests


def parse_replay_requests(options: Any, limits: RequestLimits | None = None) -> list[NormalizedRequest] | list[SinceRequest]:
    """One request or an array of them, which have an end or go on live; all of them the same."""
    items = options if isinstance(options, list) else [options]
    goes_on = [isinstance(item, Mapping) and item.get("to") in (None, LIVE) for item in items]
    if not any(goes_on):
        return parse_normalized_requests(options, limits)
    if not all(goes_on):
        place = goes_on.index(True)
        raise OptionsError(f"[{place}].to: expected a date as in the other requests, or none in all of them", f"[{place}].to")
    return _one_or_many(options, limits, parse_since_request)


def parse_since_request(options: Any, limits: RequestLimits | None = None, prefix: str = "") -> SinceRequest:
    """A request that goes on live from its JSON options."""
    fields = _Fields(options, _SINCE, limits, prefix)
    exchange = fields.exchange()
    common = fields.common(exchange, goes_on=True)
    # Unless it is told otherwise, it waits for the last minutes: then nothing is missing.
    if "waitWhenDataNotYetAvailable" not in options or options["waitWhenDataNotYetAvailable"] is None:
        common["wait_when_data_not_yet_available"] = True
    fields.refuse_playback(common["playback"])
    shared: dict[str, Any] = {
        "exchange": exchange.name,
        "data_types": fields.data_types(exchange),
        "symbols": fields.live_symbols(exchange),
        "with_disconnect_messages": fields.flag("withDisconnectMessages"),
        "publish": fields.flag("publish", default=True),
    }
    return SinceRequest(
        history=NormalizedRequest(**(common | shared)),
        live=StreamRequest(
            **shared, with_error_messages=fields.flag("withErrorMessages"), timeout_interval_ms=fields.timeout_ms()
        ),
    )


def parse_stream_request(options: Any, limits: RequestLimits | None = None, prefix: str = "") -> StreamRequest:
    """A request for live data from its JSON options."""
    fields = _Fields(options, _STREAM, limits, prefix)
    exchange = fields.exchange()
    return StreamRequest(
        exchange=exchange.name,
        data_types=fields.data_types(exchange),
        symbols=fields.live_symbols(exchange),
        with_disconnect_messages=fields.flag("withDisconnectMessages"),
        with_error_messages=fields.flag("withErrorMessages"),
        timeout_interval_ms=fields.timeout_ms(),
        publish=fields.flag("publish", default=True),
    )


class RawStreamRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Live data in the exchange's own format."""

    exchange: str
    filters: Sequence[Filter]
    timeout_interval_ms: float = DEFAULT_TIMEOUT_MS


def parse_raw_stream_request(options: Any) -> RawStreamRequest:
    """A request for live data in the exchange's own format from its options."""
    fields = _Fields(options, {"exchange", "filters", "timeoutIntervalMS"}, None)
    exchange = fields.exchange()
    fields.live_symbols(exchange, is_named=True)
    filters = fields.filters(exchange)
    if not filters:
        raise OptionsError("filters: expected an array of {channel, symbols?}, got an empty one", "filters")
    return RawStreamRequest(exchange=exchange.name, filters=filters, timeout_interval_ms=fields.timeout_ms())


def parse_book_request(options: Any) -> dict[str, Any]:
    """What is asked of a book at an instant: exchange, symbol, at_us and depth."""
    fields = _Fields(options, {"exchange", "symbol", "at", "depth"}, None)
    exchange = fields.exchange()
    if "book_change" not in exchange.data_types:
        raise OptionsError(f"exchange: {exchange.name} has no book_change; it has {', '.join(exchange.data_types)}", "exchange")
    return {
        "exchange": exchange.name,
        "symbol": fields.symbol(),
        "at_us": fields.instant_us("at"),
        "depth": fields.depth(),
    }


def parse_stream_requests(options: Any, limits: RequestLimits | None = None) -> list[StreamRequest]:
    """One request for live data, or an array of them."""
    return _one_or_many(options, limits, parse_stream_request)


Request = TypeVar("Request")


def _one_or_many(options: Any, limits: RequestLimits | None, parse: Callable[..., Request]) -> list[Request]:
    if not isinstance(options, list):
        return [parse(options, limits)]
    if not options:
        raise OptionsError("options: expected at least one request, got an empty array", "options")
    if limits is not None:
        limits.check("max_merged_requests", len(options), "options", "requests")
    return [parse(item, limits, f"[{index}].") for index, item in enumerate(options)]


# Names of fields that were ignored, each of which is told once; clients may send any number of them.
_told: set[str] = set()
_MOST_TOLD = 1_000


def _ignore_others(fields: Mapping[str, Any], known: set[str]) -> None:
    """Clients of the Node server send fields that it does not know either: they are passed over, and the log says so."""
    for name in fields:
        shown = brief(name)
        if name not in known and shown not in _told and len(_told) < _MOST_TOLD:
            _told.add(shown)
            near = get_close_matches(name[:80], known, 1)
            nearest = near[0] if near else "none"
            log.warning("a field of a request is not known and was ignored", field=shown, nearest=nearest)


class _Fields:
    """Reads fields of one options object, each with its own sentence where it is wrong."""

    def __init__(self, options: Any, known: set[str], limits: RequestLimits | None, prefix: str = "") -> None:
        if not isinstance(options, Mapping):
            raise OptionsError(f"options: expected a JSON object, got {brief(options)}", "options")
        self._options = options
        self._limits = limits
        self._prefix = prefix
        _ignore_others(options, known)

    def _wrong(self, name: str, problem: str) -> OptionsError:
        field = f"{self._prefix}{name}"
        return OptionsError(f"{field}: {problem}", field)

    def _check(self, limit: str, count: int, name: str, what: str) -> None:
        if self._limits is not None:
            self._limits.check(limit, count, f"{self._prefix}{name}", what)

    def exchange(self) -> Exchange:
        try:
            return exchange_named(self._options.get("exchange"))
        except OptionsError as error:
            raise OptionsError(f"{self._prefix}{error}", f"{self._prefix}exchange") from None

    def common(self, exchange: Exchange, *, goes_on: bool = False) -> dict[str, Any]:
        from_us = self.instant_us("from")
        to_us = _NEVER_US if goes_on else self.instant_us("to")
        if goes_on and to_us < from_us:
            raise self._wrong("from", f"expected a date up to 9999-12-31, got {self._options['from']}")
        if to_us < from_us:
            raise self._wrong(
                "to", f"expected a date that is not before from ({self._options['from']}), got {self._options['to']}"
            )
        return {
            "exchange": exchange.name,
            "from_us": from_us,
            "to_us": to_us,
            "api_key": self._text("apiKey"),
            "auto_cleanup": self.flag("autoCleanup"),
            "wait_when_data_not_yet_available": self._wait(),
            "playback": parse_playback(self._options, self._prefix),
        }

    def instant_us(self, name: str) -> int:
        value = self._options.get(name)
        try:
            if isinstance(value, str):
                return parse_date_us(value)
        except ValueError:
            pass
        raise self._wrong(name, f"expected an ISO 8601 date such as 2020-02-01 or 2020-02-01T10:30:00Z, got {brief(value)}")

    def _text(self, name: str) -> str | None:
        value = self._options.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, f"expected text, got a {type(value).__name__}")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self._options.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, f"expected true or false, got {brief(value)}")
        return value

    def _wait(self) -> bool | float:
        name = "waitWhenDataNotYetAvailable"
        value = self._options.get(name)
        if value is None:
            return False
        if isinstance(value, bool) or (isinstance(value, (int, float)) and 0 < value < 1e6):
            return value
        raise self._wrong(name, f"expected true, false or a number of minutes, got {brief(value)}")

    def refuse_playback(self, playback: Playback) -> None:
        for name in PLAYBACK_FIELDS:
            if self._options.get(name) is not None and playback != Playback():
                raise self._wrong(name, "a request that goes on live has no pace of its own; give it an end with to")

    def texts(self, name: str) -> list[str] | None:
        value = self._options.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self._wrong(name, f"expected an array of texts, got {brief(value)}")
        return self._of_length(name, value)

    def _of_length(self, name: str, texts: list[str]) -> list[str]:
        longest = max(map(len, texts), default=0)
        if longest > MOST_CHARACTERS:
            raise self._wrong(name, f"expected texts of at most {MOST_CHARACTERS} characters, got one of {longest}")
        return list(texts)

    def symbols(self) -> list[str] | None:
        symbols = self.texts("symbols")
        self._check("max_symbols", len(symbols or ()), "symbols", "symbols")
        return symbols

    def symbol(self) -> str:
        name = "symbol"
        value = self._options.get(name)
        if not isinstance(value, str) or not value:
            raise self._wrong(name, f"expected the name of an instrument, got {brief(value)}")
        return self._of_length(name, [value])[0]

    def depth(self) -> int | None:
        name = "depth"
        value = self._options.get(name)
        number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10 else value
        if number is None or (isinstance(number, int) and not isinstance(number, bool) and number > 0):
            return number
        raise self._wrong(name, f"expected a number of levels from 1 on, got {brief(value)}")

    def live_symbols(self, exchange: Exchange, *, is_named: bool = False) -> list[str] | None:
        if exchange.live is None:
            raise self._wrong("exchange", exchange.has_history_only)
        symbols = self.symbols()
        if not symbols and not is_named and exchange.live.feed.needs_symbols:
            raise self._wrong("symbols", f"live data of {exchange.name} needs at least one symbol")
        return symbols

    def timeout_ms(self) -> float:
        name = "timeoutIntervalMS"
        value = self._options.get(name)
        if value is None:
            return DEFAULT_TIMEOUT_MS
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 86_400_000:
            raise self._wrong(name, f"expected milliseconds from 0 (never) to 86400000, got {brief(value)}")
        return value

    def data_types(self, exchange: Exchange) -> list[str]:
        names = self.texts("dataTypes")
        if not names:
            raise self._wrong(
                "dataTypes", f"expected an array such as {DATA_TYPES[:2]}, got {brief(self._options.get('dataTypes'))}"
            )
        self._check("max_data_types", len(names), "dataTypes", "data types")
        try:
            parsed = parse_data_types(names)
        except OptionsError as error:
            raise OptionsError(f"{self._prefix}{error}", f"{self._prefix}dataTypes") from None
        for kind in parsed.normalizers:
            if kind not in exchange.data_types:
                raise self._wrong("dataTypes", f"{exchange.name} has no {kind}; it has {', '.join(exchange.data_types)}")
        levels = sum(item.depth for item in parsed.computables if isinstance(item, BookSnapshots))
        self._check("max_snapshot_levels", levels, "dataTypes", "levels in all snapshots")
        return names

    def filters(self, exchange: Exchange) -> list[Filter]:
        value = self._options.get("filters")
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong("filters", f"expected an array of {{channel, symbols?}}, got {brief(value)}")
        self._check("max_filters", len(value), "filters", "filters")
        filters = [self._filter(exchange, index, item) for index, item in enumerate(value)]
        symbols = sum(len(item.symbols) for item in filters if item.symbols is not UNSET)
        self._check("max_symbols", symbols, "filters", "symbols in all filters")
        return merge_filters(filters)

    def _filter(self, exchange: Exchange, index: int, item: Any) -> Filter:
        name = f"filters[{index}]"
        if not isinstance(item, Mapping):
            raise self._wrong(name, f"expected {{channel, symbols?}}, got {brief(item)}")
        _ignore_others(item, {"channel", "symbols"})
        channel = item.get("channel")
        if channel not in exchange.channels:
            known = ", ".join(exchange.channels)
            raise self._wrong(f"{name}.channel", f"{exchange.name} has no channel {brief(channel)}; it has {known}")
        symbols = item.get("symbols")
        if symbols is None:
            return Filter(channel, UNSET)
        if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
            raise self._wrong(f"{name}.symbols", f"expected an array of texts, got {brief(symbols)}")
        return Filter(channel, self._of_length(f"{name}.symbols", symbols))
