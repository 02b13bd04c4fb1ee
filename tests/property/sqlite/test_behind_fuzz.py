"""synchronous=OFF, with commits that fail behind its back: what is left is a prefix, whole, and told."""

from __future__ import annotations

from contextlib import suppress

import apsw
import pytest

import reef.sqlite
from reef.errors import UnavailableError
from reef.store import open_store
from reef.testing import Fault, FaultyStore
from tests.support.engine.open_database import database
from tests.support.sqlite.sqlite_story import Author, chapter, check_integrity, dump, setup

TRANSACTIONS = 1500
LOG = "*/wal/*"
TROUBLES = (
    (Fault("denied", on="put_if_absent", key=LOG, times=3),),
    (Fault("error_before", on="put_if_absent", key=LOG),),
    (Fault("lands_late", on="put_if_absent", key=LOG),),
    (
        Fault("reply_lost", on="put_if_absent", key=LOG),
        Fault("error_before", on="get", key=LOG, times=2),
    ),
)


def told(connection: apsw.Connection) -> int:
    """Return how far the story has come; a loss is told once, and before that."""
    with suppress(UnavailableError):
        return chapter(connection)
    return chapter(connection)


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_left_is_what_was_there_after_one_of_the_commits(seed: int) -> None:
    author = Author(seed)
    rng = author.rng
    store = open_store("memory://")
    faults = FaultyStore(store)
    options = {"cas_max_retries": 0, "max_staleness": 0, "flush_threshold_slots": 50}
    losses = 0
    with database(faults, seed=1, **options) as db, database(store, seed=2, **options) as rival:
        main = reef.sqlite.connect("app.db", database=db)
        beside = reef.sqlite.connect("app.db", database=db)
        plain = apsw.Connection(":memory:")
        for statement in setup():
            main.execute(statement)
            plain.execute(statement)
        main.execute("PRAGMA synchronous=OFF; PRAGMA cache_size=8").fetchall()
        kept = {0: (plain.serialize("main"), author.tables())}
        number = 0
        for _ in range(TRANSACTIONS):
            number += 1
            if rng.random() < 0.02:
                faults.arm(*rng.choice(TROUBLES))
            if rng.random() < 0.005:
                rival.pages("app.db").close()
            try:
                main.execute("BEGIN")
                for sql, bindings in author.transaction(number):
                    main.execute(sql, bindings).fetchall()
                main.execute("COMMIT")
                author.replay(plain)
                kept[number] = plain.serialize("main"), author.tables()
                kept.pop(number - 200, None)
                if rng.random() < 0.1:
                    main.execute("PRAGMA wal_checkpoint").fetchall()
            except (UnavailableError, apsw.IOError):
                losses += 1
                if not main.get_autocommit():
                    main.execute("ROLLBACK")
                faults.disarm()
                number = told(main)
                faults.land()
                assert number in kept
                data, tables = kept[number]
                plain.deserialize("main", data)
                author.set_tables(tables)
                for connection in (main, beside):
                    assert dump(connection) == dump(plain)
                check_integrity(main)
                continue
            with suppress(apsw.IOError):  # it may be the first to meet what went wrong
                assert chapter(beside) in kept
        faults.disarm()
        with suppress(UnavailableError):  # what is still on its way may be lost as well
            main.execute("PRAGMA synchronous=FULL")
        number = told(main)
        plain.deserialize("main", kept[number][0])
        for connection in (main, beside):
            assert dump(connection) == dump(plain)
            check_integrity(connection)
            connection.close()
        assert losses > 5
