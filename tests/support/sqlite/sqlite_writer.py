"""A process that commits transactions to a database until it is killed or fenced, and tells of each.

    python -m tests.support.sqlite.sqlite_writer URL FIRST [led | off]

Transaction n moves an amount between accounts, whose sum stays, and notes n in a journal. Lines on
stdout: "n" when the commit of n has returned, "fenced" if it was, and then it goes on behind what is
there. If led, it waits for a line on stdin before each; off is synchronous=OFF.
"""

from __future__ import annotations

import random
import sys

import apsw

import reef.sqlite
from reef.errors import FencedError

ACCOUNTS = 100
EACH = 1000


def prepare(connection: apsw.Connection) -> None:
    """Make the tables, if they are not there."""
    with connection:
        connection.execute("CREATE TABLE IF NOT EXISTS accounts(id INTEGER PRIMARY KEY, has, pad)")
        connection.execute("CREATE TABLE IF NOT EXISTS journal(n INTEGER PRIMARY KEY, note)")
        if not connection.execute("SELECT count(*) FROM accounts").get:
            rows = [(i, EACH, "x" * 500) for i in range(ACCOUNTS)]
            connection.executemany("INSERT INTO accounts VALUES (?, ?, ?)", rows)


def move(connection: apsw.Connection, n: int) -> None:
    """Commit transaction n."""
    rng = random.Random(n)
    with connection:
        for _ in range(5):
            giver, taker = rng.sample(range(ACCOUNTS), 2)
            connection.execute("UPDATE accounts SET has = has - ? WHERE id = ?", (n, giver))
            connection.execute("UPDATE accounts SET has = has + ? WHERE id = ?", (n, taker))
        connection.execute("INSERT INTO journal VALUES (?, ?)", (n, "y" * rng.randrange(2000)))


def main() -> None:
    url, first = sys.argv[1], int(sys.argv[2])
    way = sys.argv[3] if len(sys.argv) > 3 else ""
    is_led = way == "led"
    settings = {"max_staleness": 3600} if is_led else {}  # it looks for others when it has to
    connection = reef.sqlite.connect(url, flush_threshold_slots=50, **settings)
    if first == 1:
        prepare(connection)
    if way == "off":
        connection.execute("PRAGMA synchronous=OFF")
    n = first
    while not is_led or sys.stdin.readline():
        try:
            move(connection, n)
        except FencedError:
            print("fenced", flush=True)
            n = int(connection.execute("SELECT max(n) + 1 FROM journal").get)
            continue
        print(n, flush=True)
        n += 1
    connection.close()


if __name__ == "__main__":
    main()
