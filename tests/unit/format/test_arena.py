"""The arena: memory is used again when nobody reads it any more, never before."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pyarrow as pa
import pytest

from reef.format import owned_rows
from reef.format._arena import Arena

SIZE = 1 << 20


def test_a_buffer_has_room_and_can_be_written() -> None:
    for size in (SIZE, SIZE + 1, 3 * SIZE - 1):
        buffer = Arena().take(size)
        assert buffer.size >= size
        assert buffer.is_mutable


def test_memory_comes_back_when_the_last_slice_is_gone() -> None:
    arena = Arena()
    buffer = arena.take(SIZE)
    address, part = buffer.address, buffer.slice(5, 3)
    del buffer
    other = arena.take(SIZE)
    assert arena.kept_bytes == 0
    assert abs(other.address - address) >= SIZE
    del part
    gc.collect()
    assert arena.take(SIZE).address == address


def test_memory_that_is_lent_is_nobody_elses() -> None:
    arena = Arena()
    lent = [arena.take(SIZE) for _ in range(8)]
    places = sorted(buffer.address for buffer in lent)
    assert all(later - earlier >= SIZE for earlier, later in itertools.pairwise(places))


def test_no_more_is_kept_than_allowed() -> None:
    arena = Arena(3 * SIZE)
    lent = [arena.take(SIZE) for _ in range(8)]
    del lent
    assert arena.kept_bytes == 3 * SIZE


@pytest.mark.parametrize(("size", "is_used"), [(SIZE, True), (SIZE // 2, True), (SIZE // 4, False)])
def test_a_block_is_not_wasted_on_a_batch_that_is_much_smaller(size: int, is_used: bool) -> None:
    arena = Arena()
    address = arena.take(SIZE).address
    assert arena.kept_bytes == SIZE
    taken = arena.take(size)
    assert (taken.address == address) is is_used
    assert arena.kept_bytes == (0 if is_used else SIZE)


def test_no_more_memory_than_there_is() -> None:
    with pytest.raises(MemoryError, match="no memory for a batch"):
        Arena().take(1 << 60)


def test_what_is_read_of_a_batch_does_not_change_when_more_come() -> None:
    rng = np.random.default_rng(1)
    kept = []
    for _ in range(20):
        numbers = rng.random(1 << 16)
        batch, stream = owned_rows(pa.record_batch([pa.array(numbers)], ["n"]))
        assert stream is not None
        kept.append((numbers[7:9], batch["n"].slice(7, 2)))
        del batch, stream
    assert all(part.to_numpy().tolist() == numbers.tolist() for numbers, part in kept)
