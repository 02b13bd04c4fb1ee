"""The settings that a namespace keeps: who changes them, and who goes by them."""

from __future__ import annotations

import pytest

import reef
from reef.errors import InvalidInputError, NotFoundError

GIVEN = {"gc_grace": 900.0, "pitr_window": None, "max_parallel_writes": 1}


def test_they_are_shown_and_changed() -> None:
    with reef.connect("memory://") as db, db.kv("ns") as kv:
        assert kv.configure() == GIVEN
        generation = kv.stats()["generation"]
        changed = kv.configure(gc_grace="1h", pitr_window="7d")
        assert changed == {**GIVEN, "gc_grace": 3600.0, "pitr_window": 604800.0}
        assert kv.stats()["settings"] == changed
        assert kv.stats()["generation"] == generation + 1
        assert kv.configure(gc_grace=3600, pitr_window="7d") == changed
        assert kv.stats()["generation"] == generation + 1
        assert kv.configure(pitr_window="none")["pitr_window"] is None
        assert kv.configure(gc_grace="10m")["gc_grace"] == 600
        assert kv.stats()["gc"]["longest_grace_ms"] == 3_600_000
        kv.put(b"a", b"1")


def test_a_new_namespace_begins_with_what_its_writer_was_given() -> None:
    with reef.connect("memory://", gc_grace=5) as db, db.kv("ns", pitr_window=6) as kv:
        assert kv.configure() == {**GIVEN, "gc_grace": 5.0, "pitr_window": 6.0}
        assert kv.stats()["gc"]["longest_grace_ms"] == 5000


def test_a_reader_changes_them_and_the_writer_goes_on() -> None:
    with reef.connect("memory://") as db, db.kv("ns") as kv, db.kv("ns", mode="r") as reader:
        assert reader.configure(gc_grace="1h")["gc_grace"] == 3600
        kv.put(b"a", b"1")
        kv.flush()
        assert kv.configure()["gc_grace"] == 3600


def test_an_opening_writer_sets_what_it_was_given() -> None:
    with reef.connect("memory://") as db:
        db.kv("ns", pitr_window="1h").close()
        with db.kv("ns") as kv:
            assert kv.configure() == {**GIVEN, "pitr_window": 3600.0}
        with db.kv("ns", gc_grace="5m", max_parallel_writes=2) as kv:
            expected = {"gc_grace": 300.0, "pitr_window": 3600.0, "max_parallel_writes": 2}
            assert kv.configure() == expected
            assert kv.stats()["gc"]["longest_grace_ms"] == 900_000
        with db.kv("ns", mode="r", gc_grace="2m") as reader:
            assert reader.configure() == expected


def test_a_new_life_keeps_what_readers_of_the_old_one_were_promised() -> None:
    with reef.connect("memory://") as db:
        db.kv("ns", gc_grace="1h").close()
        db.drop("ns")
        with db.kv("ns") as kv:
            assert kv.configure() == GIVEN
            assert kv.stats()["gc"]["longest_grace_ms"] == 3_600_000


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_parallel_writes": 4}, "mode='w' and max_parallel_writes=4"),
        ({"block_cache_bytes": 1}, "a setting of each process"),
        ({"gc_grac": 1}, "did you mean gc_grace"),
        ({"gc_grace": "none"}, "gc_grace = 'none'"),
        ({"gc_grace": "soon"}, "a duration"),
    ],
)
def test_what_cannot_be_changed_so_is_refused(given: dict[str, object], message: str) -> None:
    with reef.connect("memory://") as db, db.kv("ns") as kv:
        generation = kv.stats()["generation"]
        with pytest.raises(InvalidInputError, match=message):
            kv.configure(**given)
        assert kv.stats()["generation"] == generation


def test_those_of_a_dropped_namespace_cannot_be_changed() -> None:
    with reef.connect("memory://") as db, db.kv("ns", mode="w") as kv:
        with db.kv("ns", mode="r") as reader:
            db.drop("ns")
            with pytest.raises(NotFoundError):
                reader.configure(gc_grace=1)
        del kv
