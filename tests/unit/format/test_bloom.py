"""The filter never denies what is there, and rarely admits what is not."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa

from reef.format import Bloom, hash_key, hash_keys
from reef.format._bloom import build_bloom


def keys(count: int, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.choice([0, 1, 7, 8, 9, 16, 17, 64, 511])) for _ in range(count)]


def test_one_key_and_a_column_of_keys_hash_alike() -> None:
    some = keys(3000, 1)
    column = pa.array(some, pa.binary())
    assert hash_keys(column).tolist() == [hash_key(key) for key in some]
    assert hash_keys(column.slice(500, 77)).tolist() == [hash_key(key) for key in some[500:577]]
    assert hash_keys(column.slice(0, 0)).tolist() == []


def test_the_hash_is_part_of_the_format() -> None:
    """A changed hash would deny keys of segments that are already there."""
    assert hash_key(b"") == 0
    assert hash_key(b"a") == 0x53C83C4054CC193
    assert hash_key(b"key-000001") == 0x5D75F50F6238AC0D


def test_nothing_that_is_there_is_denied() -> None:
    hashes = hash_keys(pa.array(keys(5000, 2), pa.binary()))
    bloom = Bloom(build_bloom([hashes]))
    assert bloom.may_contain_many(hashes).all()
    assert all(bloom.may_contain(int(hashed)) for hashed in hashes)


def test_one_probe_and_many_agree() -> None:
    bloom = Bloom(build_bloom([hash_keys(pa.array(keys(100, 3), pa.binary()))], 6))
    probes = np.random.default_rng(4).integers(0, 2**64, 5000, np.uint64)
    assert bloom.may_contain_many(probes).tolist() == [bloom.may_contain(int(p)) for p in probes]


def test_few_strangers_are_admitted() -> None:
    column = pa.array([b"doc-%09d" % i for i in range(100_000)], pa.binary())
    strangers = pa.array([b"cod-%09d" % i for i in range(100_000)], pa.binary())
    bloom = Bloom(build_bloom([hash_keys(column)]))
    assert bloom.may_contain_many(hash_keys(strangers)).mean() < 0.02


def test_hashes_do_not_collide_on_keys_that_differ_a_little() -> None:
    near = [b"%d" % i for i in range(100_000)] + [bytes(i) for i in range(512)]
    assert len(np.unique(hash_keys(pa.array(near, pa.binary())))) == len(near)


def test_an_empty_filter_denies() -> None:
    assert not Bloom(build_bloom([np.zeros(0, np.uint64)])).may_contain(hash_key(b"x"))
