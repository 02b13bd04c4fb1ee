"""Names, keys, versions and identities: what is allowed, and refusals that say so."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.errors import InvalidInputError
from reef.testing import ManualClock
from reef.types import (
    LSN_MAX,
    ORDINAL_MAX,
    SLOT_MAX,
    check_namespace,
    check_object_key,
    check_prefix,
    new_nonce,
    new_ulid,
    pack_lsn,
    unpack_lsn,
)

SLOTS = st.integers(1, SLOT_MAX)
ORDINALS = st.integers(0, ORDINAL_MAX)
BAD_KEYS = [
    "",
    "/",
    "a/",
    "/a",
    "a//b",
    ".",
    "..",
    "a/../b",
    "a/./b",
    "../a",
    "a b",
    "a\\b",
    "a\0b",
    "a\nb",
    "a\n",
    "ä",
    "a%2Fb",
    "a?b",
    "a:b",
    "~tmp/a",
    "x" * 256,
    "a/" * 512 + "ab",
]


@given(SLOTS, ORDINALS)
def test_a_version_unpacks_to_what_was_packed(slot: int, ordinal: int) -> None:
    lsn = pack_lsn(slot, ordinal)
    assert 0 < lsn <= LSN_MAX
    assert unpack_lsn(lsn) == (slot, ordinal)


@given(SLOTS, ORDINALS, SLOTS, ORDINALS)
def test_versions_are_ordered_by_slot_then_ordinal(s: int, o: int, s2: int, o2: int) -> None:
    assert (pack_lsn(s, o) < pack_lsn(s2, o2)) == ((s, o) < (s2, o2))


def test_the_largest_version_fits_63_bits() -> None:
    assert pack_lsn(SLOT_MAX, ORDINAL_MAX) == LSN_MAX == 2**63 - 1


@pytest.mark.parametrize(("slot", "ordinal"), [(0, 0), (-1, 0), (SLOT_MAX + 1, 0)])
def test_a_slot_out_of_bounds_is_refused(slot: int, ordinal: int) -> None:
    with pytest.raises(
        InvalidInputError, match=f"slot = {slot}: expected a number from 1 to {SLOT_MAX}"
    ):
        pack_lsn(slot, ordinal)


@pytest.mark.parametrize("ordinal", [-1, ORDINAL_MAX + 1])
def test_an_ordinal_out_of_bounds_is_refused(ordinal: int) -> None:
    with pytest.raises(
        InvalidInputError, match=f"ordinal = {ordinal}: expected a number from 0 to {ORDINAL_MAX}"
    ):
        pack_lsn(1, ordinal)


@pytest.mark.parametrize("key", BAD_KEYS)
def test_a_key_that_is_no_plain_path_is_refused_by_name(key: str) -> None:
    with pytest.raises(InvalidInputError, match=r"object key = .*: expected"):
        check_object_key(key)


@pytest.mark.parametrize(
    "key", ["a", "a/b", "a-b.c_d/0", ".tmp", "...", "..a", "x" * 255, "a/" * 511 + "ab"]
)
def test_a_plain_path_is_a_key(key: str) -> None:
    assert check_object_key(key) == key


@pytest.mark.parametrize("prefix", ["a", "/", "//", "a//", "../", "a/../", "a b/", "ä/"])
def test_a_prefix_that_is_no_folder_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidInputError):
        check_prefix(prefix)


@pytest.mark.parametrize("prefix", ["", "a/", "a/b/"])
def test_a_folder_is_a_prefix(prefix: str) -> None:
    assert check_prefix(prefix) == prefix


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".a", "-a", "_a", "a/b", "a b", "ä", "a\n", "x" * 129, "a\0"]
)
def test_a_namespace_that_could_leave_its_prefix_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidInputError, match=r"namespace = .* 1 to 128 of A-Z"):
        check_namespace(name)


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True))
def test_a_namespace_is_part_of_a_key(name: str) -> None:
    assert check_namespace(name) == name
    assert check_object_key(f"namespaces/{name}/wal/1")


def test_nonces_are_16_bytes_and_differ() -> None:
    rng = random.Random(1)
    nonces = {new_nonce(rng) for _ in range(1000)}
    assert len(nonces) == 1000
    assert {len(nonce) for nonce in nonces} == {16}


def test_ulids_sort_by_time_and_carry_it() -> None:
    clock, rng = ManualClock(), random.Random(1)
    names = []
    for _ in range(100):
        names.append(new_ulid(clock, rng))
        clock.advance(0.001)
    assert names == sorted(names)
    assert len(set(names)) == 100
    digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    values = [sum(digits.index(c) << 5 * i for i, c in enumerate(reversed(n))) for n in names]
    start = ManualClock().now_us() // 1000
    assert [value >> 80 for value in values] == list(range(start, start + 100))


def test_a_ulid_is_part_of_a_key() -> None:
    name = new_ulid(ManualClock(), random.Random(1))
    assert len(name) == 26
    assert check_object_key(f"segments/{name}.seg")
