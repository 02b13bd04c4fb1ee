"""Damage is noticed: in every byte, and every truncation, of every format."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reef.errors import UnreadableError
from reef.format import (
    LogKind,
    decode_dedup,
    decode_log,
    decode_manifest,
    decode_segment,
    encode_dedup,
    encode_log,
    encode_manifest,
)
from tests.support.format.samples import (
    sample_dedup,
    sample_log,
    sample_manifest,
    sample_rows,
    sample_segment,
)

SAMPLES: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    **{f"log {k.name}": (encode_log(sample_log(k)), decode_log) for k in LogKind},
    "manifest": (encode_manifest(sample_manifest()), decode_manifest),
    "dedup": (encode_dedup(sample_dedup()), decode_dedup),
    "segment": (sample_segment()[0], decode_segment),
    "segment of one row": (sample_segment(sample_rows(1))[0], decode_segment),
}
FLIPS = [1 << bit for bit in range(8)] + [0xFF]
ENDS_BYTES = 64
"""The first and the last bytes of an object: magic, version, lengths and checksums of all formats."""

pytestmark = pytest.mark.parametrize("sample", SAMPLES)


def test_the_sample_itself_is_fine(sample: str) -> None:
    data, decode = SAMPLES[sample]
    decode(data)


@pytest.mark.slow
def test_a_flipped_bit_in_any_byte_is_noticed(sample: str) -> None:
    """Each byte has a bit of its own to flip; at both ends of the object, each bit is flipped."""
    data, _ = SAMPLES[sample]
    for at in range(len(data)):
        is_end = at < ENDS_BYTES or at >= len(data) - ENDS_BYTES
        check_flips(sample, at, FLIPS if is_end else [1 << at % 8])


@pytest.mark.nightly
def test_every_flipped_bit_is_noticed(sample: str) -> None:
    data, _ = SAMPLES[sample]
    for at in range(len(data)):
        check_flips(sample, at, FLIPS)


def check_flips(sample: str, at: int, flips: list[int]) -> None:
    """Check that the byte at `at` cannot be read when it differs by one of `flips`."""
    data, decode = SAMPLES[sample]
    for flip in flips:
        with pytest.raises(UnreadableError):
            decode(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])


def test_every_truncation_is_noticed(sample: str) -> None:
    data, decode = SAMPLES[sample]
    for length in range(len(data)):
        with pytest.raises(UnreadableError):
            decode(data[:length])


def test_every_byte_too_many_is_noticed(sample: str) -> None:
    data, decode = SAMPLES[sample]
    for extra in (b"\0", b"\n", b"junk", bytes(8), data):
        with pytest.raises(UnreadableError):
            decode(data + extra)
        with pytest.raises(UnreadableError):
            decode(extra + data)
