# cython: language_level=3, boundscheck=False, wraparound=False, annotation_typing=False
"""`_feeding` compiled: the same function, without a step of Python between the parser and the mappers."""

from tardis_machine._declarations cimport (
    PyMemberDef,
    PyUnicode_CheckExact,
    find_field,
    get_field,
)

from ..messages import UNSET, BookChange, BookTicker, DerivativeTicker, OptionSummary, Trade
from ._feeding import check_form as check_unusual

__all__ = ["feed_messages"]

cdef:
    object _BookChange = BookChange
    object _BookTicker = BookTicker
    object _DerivativeTicker = DerivativeTicker
    object _OptionSummary = OptionSummary
    object _Trade = Trade
    object _UNSET = UNSET
    object _check_unusual = check_unusual
    PyMemberDef *_CHANGE_IS_SNAPSHOT = find_field(BookChange, "is_snapshot")
    PyMemberDef *_CHANGE_SYMBOL = find_field(BookChange, "symbol")
    PyMemberDef *_OPTION_SYMBOL = find_field(OptionSummary, "symbol")
    PyMemberDef *_OPTION_INDEX = find_field(OptionSummary, "underlying_index")
    PyMemberDef *_QUOTE_SYMBOL = find_field(BookTicker, "symbol")
    PyMemberDef *_TICKER_SYMBOL = find_field(DerivativeTicker, "symbol")
    PyMemberDef *_TRADE_ID = find_field(Trade, "id")
    PyMemberDef *_TRADE_SIDE = find_field(Trade, "side")
    PyMemberDef *_TRADE_SYMBOL = find_field(Trade, "symbol")


cdef inline bint _is_text(object value) noexcept:
    return PyUnicode_CheckExact(value) or value is _UNSET


cdef inline bint _is_usual(object message):
    """Whether it is one of the frequent kinds, with names and flags as they should be."""
    kind = type(message)
    if kind is _BookChange:
        is_snapshot = get_field(message, _CHANGE_IS_SNAPSHOT)
        return (is_snapshot is True or is_snapshot is False) and _is_text(get_field(message, _CHANGE_SYMBOL))
    if kind is _Trade:
        return (
            _is_text(get_field(message, _TRADE_SYMBOL))
            and _is_text(get_field(message, _TRADE_ID))
            and _is_text(get_field(message, _TRADE_SIDE))
        )
    if kind is _BookTicker:
        return _is_text(get_field(message, _QUOTE_SYMBOL))
    if kind is _OptionSummary:
        return _is_text(get_field(message, _OPTION_SYMBOL)) and _is_text(get_field(message, _OPTION_INDEX))
    return kind is _DerivativeTicker and _is_text(get_field(message, _TICKER_SYMBOL))


def feed_messages(calls, clocks, list messages not None, Py_ssize_t start, list out not None):
    """See `_feeding.feed_messages`."""
    cdef Py_ssize_t place = start, count = len(messages)
    cdef list pairs = list(calls)
    cdef tuple pair
    try:
        while place < count:
            clock = clocks[place]
            if clock is None:
                return place, None
            message = messages[place]
            for pair in pairs:
                if pair[0](message):
                    for made in pair[1](message, clock):
                        if not _is_usual(made):
                            _check_unusual(made)
                        out.append(made)
            place += 1
    except Exception as error:
        return place, error
    return count, None
