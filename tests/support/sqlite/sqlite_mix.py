"""The mix of statements of SQLite's own comparison of speeds (speed.html), at any scale.

Sixteen tests: inserts one by one, in a transaction, with an index; selects without and with an index,
and by strings; updates; inserts from a select; deletes; many small inserts after a large delete; and
dropping what there is. At scale 1 the numbers are those of the page.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TypeAlias

import apsw

Answer: TypeAlias = list[tuple[object, ...]]
_UNITS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
_UNITS += " fifteen sixteen seventeen eighteen nineteen"
_TENS = ". . twenty thirty forty fifty sixty seventy eighty ninety"


def number_name(number: int) -> str:
    """Return a number in words."""
    parts = []
    if number >= 1000:
        parts += [number_name(number // 1000), "thousand"]
        number %= 1000
    if number >= 100:
        parts += [_UNITS.split()[number // 100], "hundred"]
        number %= 100
    if number >= 20:
        parts.append(_TENS.split()[number // 10])
        number %= 10
    if number or not parts:
        parts.append(_UNITS.split()[number])
    return " ".join(parts)


class Mix:
    """The tests, one after the other, on one connection."""

    def __init__(self, connection: apsw.Connection, scale: float, seed: int = 1) -> None:
        self._connection = connection
        self._scale = scale
        self._rng = random.Random(seed)

    def tests(self) -> Iterator[tuple[str, Callable[[], Answer]]]:
        """Yield each test by its name; they build on each other."""
        few, many = self._of(1000), self._of(25_000)
        yield f"{few} inserts, one by one", lambda: self._inserts("t1", few)
        yield f"{many} inserts in a transaction", lambda: self._inserts("t2", many, whole=True)
        yield (
            f"{many} inserts into an indexed table",
            lambda: self._inserts("t3", many, whole=True, index="b"),
        )
        yield f"{self._of(100)} selects without an index", self._selects
        yield f"{self._of(100)} selects by a string", self._string_selects
        yield "creating two indexes", self._indexes
        yield f"{self._of(5000)} selects with an index", self._indexed_selects
        yield f"{few} updates without an index", self._updates
        yield f"{many} updates with an index", lambda: self._indexed_updates("b")
        yield f"{many} text updates with an index", lambda: self._indexed_updates("c")
        yield "inserts from a select", self._from_select
        yield "deletes without an index", lambda: self._delete("c LIKE '%fifty%'")
        yield "deletes with an index", lambda: self._delete(f"a > {few} AND a < {many * 4 // 5}")
        yield (
            "a large insert after a large delete",
            lambda: self._run("INSERT INTO t2 SELECT * FROM t1"),
        )
        yield f"a large delete and {self._of(12_000)} small inserts", self._refill
        yield "dropping the tables", self._drop

    def _of(self, count: int) -> int:
        return max(10, round(count * self._scale))

    def _run(self, sql: str, bindings: tuple[object, ...] = ()) -> Answer:
        return [tuple(row) for row in self._connection.execute(sql, bindings)]  # type: ignore[arg-type]

    def _row(self) -> tuple[int, str]:
        number = self._rng.randrange(100_000)
        return number, number_name(number)

    def _inserts(
        self, table: str, count: int, *, whole: bool = False, index: str | None = None
    ) -> Answer:
        self._run(f"CREATE TABLE {table}(a INTEGER, b INTEGER, c VARCHAR(100))")
        if index is not None:
            self._run(f"CREATE INDEX i_{table}_{index} ON {table}({index})")
        if whole:
            self._run("BEGIN")
        for i in range(1, count + 1):
            self._run(f"INSERT INTO {table} VALUES (?, ?, ?)", (i, *self._row()))
        if whole:
            self._run("COMMIT")
        return self._run(f"SELECT count(*), sum(b) FROM {table}")

    def _selects(self) -> Answer:
        found: Answer = []
        for i in range(self._of(100)):
            low = i * 100
            found += self._run(
                "SELECT count(*), avg(b) FROM t2 WHERE b >= ? AND b < ?", (low, low + 1000)
            )
        return found

    def _string_selects(self) -> Answer:
        found: Answer = []
        for i in range(1, self._of(100) + 1):
            found += self._run(
                "SELECT count(*), avg(b) FROM t2 WHERE c LIKE ?", (f"%{number_name(i)}%",)
            )
        return found

    def _indexes(self) -> Answer:
        self._run("CREATE INDEX i2a ON t2(a)")
        self._run("CREATE INDEX i2b ON t2(b)")
        return []

    def _indexed_selects(self) -> Answer:
        found: Answer = []
        for i in range(self._of(5000)):
            low = i * 100 % 100_000
            found += self._run(
                "SELECT count(*), avg(b) FROM t2 WHERE b >= ? AND b < ?", (low, low + 100)
            )
        return found

    def _updates(self) -> Answer:
        self._run("BEGIN")
        for i in range(self._of(1000)):
            self._run("UPDATE t1 SET b = b * 2 WHERE a >= ? AND a < ?", (i * 10, i * 10 + 10))
        self._run("COMMIT")
        return self._run("SELECT sum(b) FROM t1")

    def _indexed_updates(self, column: str) -> Answer:
        self._run("BEGIN")
        for i in range(1, self._of(25_000) + 1):
            number, name = self._row()
            value = number if column == "b" else name
            self._run(f"UPDATE t2 SET {column} = ? WHERE a = ?", (value, i))
        self._run("COMMIT")
        return self._run("SELECT sum(b), sum(length(c)) FROM t2")

    def _from_select(self) -> Answer:
        self._run("BEGIN")
        self._run("INSERT INTO t1 SELECT b, a, c FROM t2")
        self._run("INSERT INTO t2 SELECT b, a, c FROM t1")
        self._run("COMMIT")
        return self._run("SELECT count(*), sum(a), sum(b) FROM t2")

    def _delete(self, where: str) -> Answer:
        self._run(f"DELETE FROM t2 WHERE {where}")
        return self._run("SELECT count(*), sum(a) FROM t2")

    def _refill(self) -> Answer:
        self._run("BEGIN")
        self._run("DELETE FROM t1")
        for i in range(1, self._of(12_000) + 1):
            self._run("INSERT INTO t1 VALUES (?, ?, ?)", (i, *self._row()))
        self._run("COMMIT")
        return self._run("SELECT count(*), sum(b) FROM t1")

    def _drop(self) -> Answer:
        for table in ("t1", "t2", "t3"):
            self._run(f"DROP TABLE {table}")
        return self._run("SELECT count(*) FROM sqlite_schema")


def run_mix(connection: apsw.Connection, *, scale: float) -> Iterator[tuple[str, Answer]]:
    """Run every test; yield its name and what it found."""
    for name, test in Mix(connection, scale).tests():
        yield name, test()
