# cython: language_level=3, boundscheck=False, wraparound=False, annotation_typing=False
"""`computer` compiled: the same loop, which looks computations up only where a message is of another market than the one before it."""

from tardis_machine._declarations cimport PyMemberDef, find_field, get_field

from ..messages import BookChange, Disconnect, Trade

__all__ = ["compute_each"]

cdef:
    object _BookChange = BookChange
    object _Disconnect = Disconnect
    object _Trade = Trade
    PyMemberDef *_CHANGE_SYMBOL = find_field(BookChange, "symbol")
    PyMemberDef *_CHANGE_EXCHANGE = find_field(BookChange, "exchange")
    PyMemberDef *_TRADE_SYMBOL = find_field(Trade, "symbol")
    PyMemberDef *_TRADE_EXCHANGE = find_field(Trade, "exchange")


def compute_each(messages, list out not None, computables, dropped, dict running, begin, bint resets):
    """See `computer.compute_each`."""
    cdef bint is_shown = True, is_source = False
    cdef list updates = None
    kind = exchange = symbol = None
    for message in messages:
        if type(message) is not kind:
            kind = type(message)
            is_shown, is_source = kind not in dropped, kind in computables
            updates = None
        if is_shown:
            out.append(message)
        if is_source:
            if kind is _BookChange:
                its_exchange, its_symbol = get_field(message, _CHANGE_EXCHANGE), get_field(message, _CHANGE_SYMBOL)
            elif kind is _Trade:
                its_exchange, its_symbol = get_field(message, _TRADE_EXCHANGE), get_field(message, _TRADE_SYMBOL)
            else:
                its_exchange, its_symbol = message.exchange, message.symbol
            if updates is None or its_symbol is not symbol or its_exchange is not exchange:
                exchange, symbol = its_exchange, its_symbol
                try:
                    computations = running[exchange][kind][symbol]
                except KeyError:
                    computations = begin(exchange, kind, symbol)
                updates = [computation.update for computation in computations]
            for update in updates:
                update(message, out)
        elif kind is _Disconnect and resets:
            running.pop(message.exchange, None)
            updates = None
