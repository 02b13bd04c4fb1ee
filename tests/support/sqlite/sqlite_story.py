"""Random transactions, run by SQLite on Reef and by SQLite on a plain file, one like the other.

What the two answer to every statement is compared at once, and the whole of both now and then. A row of
the table `story` counts transactions: by it one can tell afterwards whether a commit of which nobody
knows took place.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import apsw

Statement = tuple[str, tuple[object, ...]]
TABLES = 4
FULL_EVERY = 500


def setup() -> Iterator[str]:
    """Yield what makes the tables that every story begins with."""
    yield "CREATE TABLE story(n INTEGER NOT NULL)"
    yield "INSERT INTO story VALUES (0)"
    for i in range(TABLES):
        yield f"CREATE TABLE t{i}(id INTEGER PRIMARY KEY, a, b)"


class Author:
    """Makes up transactions, by seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._tables = {f"t{i}": ["a", "b"] for i in range(TABLES)}
        self._before = dict(self._tables)
        self._serial = 0
        self._told: list[Statement] = []

    def transaction(self, number: int) -> Iterator[Statement]:
        """Yield the statements of a transaction, without its begin and its end."""
        self._told = []
        for statement in self._transaction(number):
            self._told.append(statement)
            yield statement

    def replay(self, connection: apsw.Connection) -> None:
        """Run the last transaction once more, elsewhere."""
        connection.execute("BEGIN")
        for sql, bindings in self._told:
            connection.execute(sql, bindings).fetchall()  # type: ignore[arg-type]
        connection.execute("COMMIT")

    def tables(self) -> dict[str, list[str]]:
        """Return the tables that there are, with their columns."""
        return {name: list(columns) for name, columns in self._tables.items()}

    def set_tables(self, tables: dict[str, list[str]]) -> None:
        """Go back to these tables."""
        self._tables = {name: list(columns) for name, columns in tables.items()}

    def _transaction(self, number: int) -> Iterator[Statement]:
        self._before = {name: list(columns) for name, columns in self._tables.items()}
        yield "UPDATE story SET n = ?", (number,)
        depth = 0
        marks: list[dict[str, list[str]]] = []
        for _ in range(self.rng.choice((1, 1, 2, 3, 7))):
            roll = self.rng.random()
            if roll < 0.10:
                marks.append({name: list(columns) for name, columns in self._tables.items()})
                yield f"SAVEPOINT s{depth}", ()
                depth += 1
            elif roll < 0.20 and depth:
                depth -= 1
                mark = marks.pop()
                if self.rng.random() < 0.5:
                    self._tables = mark
                    yield f"ROLLBACK TO s{depth}", ()
                yield f"RELEASE s{depth}", ()
            elif roll < 0.24:
                yield self._reshape(), ()
            else:
                yield self._change()

    def undo(self) -> None:
        """Forget what the last transaction did to the tables: it did not take place."""
        self._tables = self._before

    def _reshape(self) -> str:
        self._serial += 1
        name = self.rng.choice(sorted(self._tables))
        kind = self.rng.randrange(5)
        if kind == 0:
            self._tables[f"n{self._serial}"] = ["a", "b"]
            return f"CREATE TABLE n{self._serial}(id INTEGER PRIMARY KEY, a, b)"
        if kind == 1 and name.startswith("n"):
            del self._tables[name]
            return f"DROP TABLE {name}"
        if kind == 2 and len(self._tables[name]) < 6:
            self._tables[name].append(f"c{self._serial}")
            return f"ALTER TABLE {name} ADD COLUMN c{self._serial} DEFAULT {self._serial}"
        if kind == 3:
            return f"DROP INDEX IF EXISTS i_{name}"
        return f"CREATE INDEX IF NOT EXISTS i_{name} ON {name}(a)"

    def _change(self) -> Statement:
        rng = self.rng
        name = rng.choice(sorted(self._tables))
        key, value = rng.randrange(120), rng.randrange(1000)
        column = rng.choice(self._tables[name])
        kind = rng.randrange(10)
        if kind < 5:
            size = rng.choice((4, 40, 40, 400, 400, 3000, 9000))
            data = rng.randbytes(4) * (size // 4)
            return f"INSERT OR REPLACE INTO {name}(id, a, b) VALUES (?, ?, ?)", (key, value, data)
        if kind < 7:
            return f"UPDATE {name} SET {column} = ? WHERE a % 7 = ?", (value, value % 7)
        if kind == 7:
            return f"DELETE FROM {name} WHERE id BETWEEN ? AND ?", (key, key + 10)
        if kind == 8:
            return f"SELECT id, a, length(b) FROM {name} WHERE a >= ? ORDER BY a, id", (value,)
        return f"SELECT count(*), sum(a), sum(length(b)) FROM {name} WHERE id < ?", (key,)


def dump(connection: apsw.Connection) -> list[object]:
    """Return everything that is in a database, in order."""
    schema = connection.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall()
    found: list[object] = [schema]
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
    for (name,) in tables.fetchall():
        found.append((name, connection.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall()))
    return found


def check_integrity(connection: apsw.Connection) -> None:
    """Assert that SQLite finds nothing wrong with a database."""
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def chapter(connection: apsw.Connection) -> int:
    """Return how many transactions have taken place."""
    number = connection.execute("SELECT n FROM story").get
    assert isinstance(number, int)
    return number
