"""Random numbers that are pure functions: hashes of integers, and random walks whose value at any second needs no other second.

Invariant: only integer arithmetic and correctly rounded float operations (+ - * / sqrt) are used, so that one seed gives the same
bits on every platform and Python version.
"""

from __future__ import annotations

from hashlib import sha256
from math import sqrt

__all__ = ["RandomWalk", "key_of", "mix", "unit", "uuid_of"]

_MASK = (1 << 64) - 1
_KNOTS_KEPT = 200_000


def key_of(text: str) -> int:
    """A 64-bit key of a name."""
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")


def mix(*parts: int) -> int:
    """A 64-bit hash of integers (splitmix64, chained)."""
    state = 0
    for part in parts:
        state = (state ^ part) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def unit(*parts: int) -> float:
    """A hash as a number in [0, 1)."""
    return (mix(*parts) >> 11) / (1 << 53)


def uuid_of(key: int, identity: int) -> str:
    """A number in the form of a UUID, different for each key."""
    return f"{key & 0xFFFFFFFF:08x}-{identity >> 16 & 0xFFFF:04x}-{identity & 0xFFFF:04x}-{key >> 48:04x}-{identity:012x}"


class RandomWalk:
    """A continuous random walk around 0. Its value at a second depends on the key and the second alone.

    It is value noise summed over octaves: the amplitude of an octave grows with the root of its period, as a random walk's does.
    """

    def __init__(self, key: int, volatility: float, shortest_s: int = 4, octaves: int = 20) -> None:
        self._octaves = [
            (mix(key, n), shortest_s << n, mix(key, n, 1) % (shortest_s << n), volatility * sqrt(shortest_s << n))
            for n in range(octaves)
        ]
        self._knots: dict[tuple[int, int], float] = {}

    def at(self, second: int) -> float:
        """The deviation at a second since 1970."""
        total = 0.0
        for key, period_s, shift_s, amplitude in self._octaves:
            knot, inside = divmod(second + shift_s, period_s)
            before = self._knot(key, knot)
            total += amplitude * (before + (self._knot(key, knot + 1) - before) * (inside / period_s))
        return total

    def _knot(self, key: int, index: int) -> float:
        value = self._knots.get((key, index))
        if value is None:
            if len(self._knots) >= _KNOTS_KEPT:
                self._knots.clear()
            value = self._knots[key, index] = 2.0 * unit(key, index) - 1.0
        return value
