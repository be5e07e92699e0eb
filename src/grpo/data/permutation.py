"""A seeded permutation of ``range(n)`` that needs no list: constant memory, random access.

A balanced Feistel network permutes the numbers of an even number of bits; cycle walking restricts it to ``range(n)``
(Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). The round function is BLAKE2b, so that the
order is the same on every platform and Python version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

# Four rounds make a pseudo-random permutation of large blocks (Luby and Rackoff, 1988); small data sets have blocks of
# a few bits, where more rounds are what mixes.
ROUNDS = 8


class Permutation:
    """``permutation[i]`` for i in ``range(size)`` takes each value of ``range(size)`` exactly once.

    Args:
        size: at least 1.
        key: any integers; each tuple gives an order of its own.
    """

    def __init__(self, size: int, *key: int) -> None:
        if size < 1:
            raise ValueError(f"a permutation of {size} elements")
        self.size = size
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        key_bytes = hashlib.blake2b(",".join(map(str, key)).encode(), digest_size=32).digest()
        self._rounds = [hashlib.blake2b(key=key_bytes, person=bytes([r]), digest_size=8) for r in range(ROUNDS)]

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return (self[index] for index in range(self.size))

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise IndexError(index)
        # The block is less than four times the size, so a walk takes fewer than four steps on average.
        value = self._block(index)
        while value >= self.size:
            value = self._block(value)
        return value

    def _block(self, value: int) -> int:
        mask = (1 << self._half_bits) - 1
        left, right = value >> self._half_bits, value & mask
        for keyed in self._rounds:
            hasher = keyed.copy()
            hasher.update(right.to_bytes(8, "big"))
            left, right = right, left ^ (int.from_bytes(hasher.digest(), "big") & mask)
        return left << self._half_bits | right
