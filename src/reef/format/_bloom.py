"""The filter that lets a point read pass over a segment: a split-block Bloom filter over keys.

    filter = block block*    as many as bits per key ask for
    block  = 8 words of u32, little-endian

A key's hash is 64 bits: the upper 32 choose the block (multiplied into the number of blocks), the
lower 32 set one bit in each of its 8 words, chosen by the upper 5 bits of the product with the
word's odd constant. This is the filter that Parquet uses, over Reef's own hash of the key:

    h = length × C0
    for each 8 bytes of the key as little-endian u64 w, the last padded with zeros:
        h = (h xor w) × C1;  h = h xor (h >> 32)
    h = h × C2;  h = h xor (h >> 29)

all modulo 2**64. It is computed for a whole column at once, without a loop over rows, and for a
single key in plain integers; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BITS_PER_KEY_DEFAULT = 10
BLOCK_BYTES = 32

_C0 = 0x9E3779B97F4A7C15
_C1 = 0xBF58476D1CE4E5B9
_C2 = 0x94D049BB133111EB
_SALTS = (
    0x47B6137B,
    0x44974D91,
    0x8824AD5B,
    0xA2B7289D,
    0x705495C7,
    0x2DF1424B,
    0x9EFC4947,
    0x5C6BFB31,
)
_U64 = 2**64 - 1
_U32 = 2**32 - 1

Hashes = npt.NDArray[np.uint64]


def hash_key(key: bytes) -> int:
    """Return the 64-bit hash of one key."""
    h = len(key) * _C0 & _U64
    for at in range(0, len(key), 8):
        h = (h ^ int.from_bytes(key[at : at + 8], "little")) * _C1 & _U64
        h ^= h >> 32
    h = h * _C2 & _U64
    return h ^ h >> 29


def hash_keys(keys: pa.BinaryArray) -> Hashes:
    """Return the 64-bit hash of every key of a column."""
    count = len(keys)
    buffers = keys.buffers()
    offsets = np.frombuffer(buffers[1], np.int32)[keys.offset : keys.offset + count + 1]
    first, last = (int(offsets[0]), int(offsets[-1])) if count else (0, 0)
    lengths = np.diff(offsets).astype(np.int64)
    if last > first and (lengths == lengths[0]).all():
        return _hash_alike(buffers[2], first, count, int(lengths[0]))
    starts = offsets[:-1].astype(np.int64)
    data = np.zeros(last - first + 8, np.uint8)  # 8 zeros, so that the last word can be read
    if last > first:
        data[: last - first] = np.frombuffer(buffers[2], np.uint8, last - first, first)
    starts -= first
    words = np.ndarray((len(data) - 7,), np.dtype("<u8"), data, strides=(1,))
    h = lengths.astype(np.uint64) * np.uint64(_C0)
    rows = np.flatnonzero(lengths)
    at = 0
    while len(rows):  # one word of every key that has one; few keys are longer than the others
        left = lengths[rows] - at
        short = np.maximum(8 - left, 0).astype(np.uint64) * np.uint64(8)
        word = words[starts[rows] + at] & (np.uint64(_U64) >> short)
        mixed = (h[rows] ^ word) * np.uint64(_C1)
        h[rows] = mixed ^ mixed >> np.uint64(32)
        rows = rows[left > 8]
        at += 8
    h *= np.uint64(_C2)
    return h ^ h >> np.uint64(29)


def _hash_alike(data: pa.Buffer, first: int, count: int, length: int) -> Hashes:
    """Return the hashes of `count` keys that all are `length` bytes: they need not be gathered."""
    h = np.full(count, length * _C0 & _U64, np.uint64)
    whole = length - length % 8
    words = [
        np.ndarray((count,), np.dtype("<u8"), data, first + at, (length,))
        for at in range(0, whole, 8)
    ]
    if length > whole:
        last = np.zeros((count, 8), np.uint8)
        last[:, : length - whole] = np.ndarray(
            (count, length - whole), np.uint8, data, first + whole, (length, 1)
        )
        words.append(last.view(np.dtype("<u8"))[:, 0])
    for word in words:
        h ^= word
        h *= np.uint64(_C1)
        h ^= h >> np.uint64(32)
    h *= np.uint64(_C2)
    return h ^ h >> np.uint64(29)


def build_bloom(chunks: Sequence[Hashes], bits_per_key: int = BITS_PER_KEY_DEFAULT) -> bytes:
    """Return the filter that holds the hashes of all `chunks`."""
    count = sum(map(len, chunks))
    blocks = max(1, -(-count * bits_per_key // (BLOCK_BYTES * 8)))
    words = np.zeros(blocks * len(_SALTS), np.dtype("<u4"))
    for hashes in chunks:
        base = (hashes >> np.uint64(32)) * np.uint64(blocks) >> np.uint64(32) << np.uint64(3)
        low = hashes.astype(np.uint32)
        for word, salt in enumerate(_SALTS):
            bit = np.uint32(1) << (low * np.uint32(salt) >> np.uint32(27))
            np.bitwise_or.at(words, base + np.uint64(word), bit)
    return words.tobytes()


@dataclass(frozen=True)
class Bloom:
    """A filter: what it denies is not there; what it admits may be."""

    data: bytes

    def may_contain(self, hashed: int) -> bool:
        """Return False only if no key with this hash was put in."""
        block = (hashed >> 32) * (len(self.data) // BLOCK_BYTES) >> 32
        low = hashed & _U32
        found = int.from_bytes(self.data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES], "little")
        for word, salt in enumerate(_SALTS):  # a plain loop: half the time of all() on a hot read
            if not found >> (32 * word + (low * salt >> 27 & 31)) & 1:
                return False
        return True

    def may_contain_many(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Return, for each hash, False only if no key with it was put in."""
        words = np.frombuffer(self.data, np.dtype("<u4")).reshape(-1, len(_SALTS))
        block = (hashes >> np.uint64(32)) * np.uint64(len(words)) >> np.uint64(32)
        found = words.take(block.astype(np.intp), axis=0)
        low = hashes.astype(np.uint32)
        all_set = np.ones(len(hashes), np.uint32)
        for word, salt in enumerate(_SALTS):
            bit = low * np.uint32(salt) >> np.uint32(27)
            all_set &= found[:, word] >> bit
        return all_set.astype(np.bool_)
