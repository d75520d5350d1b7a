"""Of recorded lines, those of some channels and symbols: what the history API does with filters, done to own recordings.

A channel's messages are those that its mappers accept; where these read several channels, those that name it. What no mapper accepts is
of the channel and symbol that it names; what names none (a greeting, an answer to a subscription) comes along. A message is of the symbols
that it names, with a text of its own or a part of a topic. What names no symbol that was recorded may be of any.

Invariant: of the lines that are left, mappers make what they make of all lines for the channels and symbols asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from heapq import merge

import orjson

from ..exchanges import Json, Mapper, exchange_named, make_mappers
from ..filters import Filter
from ..messages import UNSET
from ..recorded_line import KEY_LENGTH, message_of

__all__ = ["Selection", "merge_lines", "missing_of", "overlap_of", "select_lines", "to_selection"]

_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_TOPIC_PARTS = (re.compile("[@:,]"), re.compile(r"[@:,./ ]"))

Selection = dict[str, frozenset[str] | None]
"""Symbols by channel; None are all of them."""


def to_selection(filters: Iterable[Filter]) -> Selection:
    """Of optimized filters. An empty list of symbols asks for all, as no list does."""
    return {item.channel: None if item.symbols is UNSET or not item.symbols else frozenset(item.symbols) for item in filters}


def overlap_of(asked: Selection, recorded: Selection) -> Selection:
    """What of the asked was recorded."""
    found: Selection = {}
    for channel, symbols in asked.items():
        if channel in recorded:
            known = recorded[channel]
            both = symbols if known is None else known & symbols if symbols is not None else None
            # Whoever asks for all symbols does not get by with some.
            if both or (symbols is None and known is None):
                found[channel] = both
    return found


def missing_of(asked: Selection, found: Selection) -> Selection:
    """What of the asked is not among what was found."""
    missing: Selection = {}
    for channel, symbols in asked.items():
        if channel not in found:
            missing[channel] = symbols
        elif symbols is not None and (rest := symbols - (found[channel] or symbols)):
            missing[channel] = rest
    return missing


def select_lines(exchange: str, lines: Sequence[bytes], recorded: Selection, asked: Selection, at_us: int) -> list[bytes]:
    """The lines of what is asked, of lines that were recorded at a time under other filters."""
    return _Selector(exchange, recorded, asked, at_us).select(lines)


def merge_lines(parts: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Lines of several recordings in order of time; an empty line stays behind the line before it."""
    if len(parts) == 1:
        return list(parts[0])
    return [line for _, line in merge(*map(_keyed, parts), key=lambda item: item[0])]


def _keyed(lines: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    key = b""
    for line in lines:
        key = line[:KEY_LENGTH] or key
        yield key, line


class _Selector:
    def __init__(self, exchange: str, recorded: Selection, asked: Selection, at_us: int) -> None:
        declared = exchange_named(exchange)
        self._prepare = declared.prepare
        self._mappers = make_mappers(declared, declared.data_types, at_us)
        self._channels = {channel.lower(): channel for channel in declared.channels}
        self._recorded = {channel: _lowered(symbols) for channel, symbols in recorded.items()}
        self._asked = {channel: _lowered(symbols) for channel, symbols in asked.items()}

    def select(self, lines: Sequence[bytes]) -> list[bytes]:
        return [line for line in lines if not line or self._is_asked(line)]

    def _is_asked(self, line: bytes) -> bool:
        raw = message_of(line)
        try:
            message = orjson.loads(raw if self._prepare is None else self._prepare(raw))
        except orjson.JSONDecodeError:
            return True  # whoever reads it is to know
        channels = {channel for mapper in self._mappers if _accepts(mapper, message) for channel in mapper.channels}
        names = None
        if len(channels) != 1:
            names = names_in(raw)
            named = {self._channels[name] for name in names if name in self._channels} & self._recorded.keys()
            if not channels and names.isdisjoint(self._symbols_of(named)):
                return True
            channels = channels & named if channels & named else channels or named
        channels &= self._asked.keys()
        if not channels:
            return False
        if any(self._asked[channel] is None for channel in channels):
            return True
        names = names_in(raw) if names is None else names
        asked = frozenset[str]().union(*(self._asked[channel] or () for channel in channels))
        recorded = self._symbols_of(channels)
        if not names.isdisjoint(asked | recorded):
            return not names.isdisjoint(asked)
        # It may be a part of another name: tBTCUSD, live_trades_btcusd.
        text = raw.lower().decode(errors="replace")
        if any(symbol in text for symbol in asked):
            return True
        is_known = all(self._recorded.get(channel) is not None for channel in channels)
        return is_known and not any(symbol in text for symbol in recorded)

    def _symbols_of(self, channels: Iterable[str]) -> frozenset[str]:
        """Those that were recorded by name."""
        return frozenset[str]().union(*(self._recorded.get(channel) or () for channel in channels))


def _accepts(mapper: Mapper, message: Json) -> bool:
    try:
        return bool(mapper.accepts(message))
    except Exception:
        return True  # what it can't read, it is to complain of


def _lowered(symbols: frozenset[str] | None) -> frozenset[str] | None:
    return None if symbols is None else frozenset(symbol.lower() for symbol in symbols)


def names_in(raw: bytes) -> frozenset[str]:
    """All that may be a name in a message, in lower case: its texts, and the parts of topics."""
    texts = set(_TEXT.findall(raw.decode(errors="replace").replace("\\/", "/").lower()))
    for parts in _TOPIC_PARTS:
        texts.update([part for text in texts for part in parts.split(text)])
    return frozenset(texts)
