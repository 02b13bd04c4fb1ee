"""A tour of SQLite on Reef: on a `file://` bucket in a temporary folder, in a few seconds.

python examples/sqlite.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import apsw

import reef
import reef.sqlite
from reef.errors import FencedError


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"{Path(folder).as_uri()}/shop.db"
        then = write(url)
        travel_in_time(url, then)
        branch(folder, url)
        take_over(url)


def chapter(title: str) -> None:
    print(f"\n{title}\n{'-' * len(title)}")


def stock(con: apsw.Connection) -> dict[str, int]:
    return {str(name): int(str(count)) for name, count in con.execute("SELECT * FROM stock")}


def write(url: str) -> int:
    chapter("A commit that returns is in the bucket")
    con = reef.sqlite.connect(url)
    con.execute("CREATE TABLE stock(name PRIMARY KEY, count CHECK (count >= 0))")
    with con:
        con.execute("INSERT INTO stock VALUES ('apple', 10), ('knife', 3)")
    then = int(con.execute("PRAGMA reef_lsn").get)
    try:
        with con:
            con.execute("UPDATE stock SET count = count - 1 WHERE name = 'knife'")
            con.execute("UPDATE stock SET count = count - 11 WHERE name = 'apple'")
    except apsw.ConstraintError as error:
        print("rolled back:", error)
    con.execute("UPDATE stock SET count = 0")
    print(stock(con))
    con.close()
    return then


def travel_in_time(url: str, then: int) -> None:
    chapter("Every version can be read")
    con = reef.sqlite.connect(url, lsn=then)
    print(f"at LSN {then}: {stock(con)}")
    con.close()


def branch(folder: str, url: str) -> None:
    chapter("A branch is there at once, and goes its own way")
    with reef.connect(Path(folder).as_uri()) as db, db.pages("shop.db", mode="r") as pages:
        pages.branch("trial")
    trial, con = reef.sqlite.connect(url, branch="trial"), reef.sqlite.connect(url)
    trial.execute("DROP TABLE stock; CREATE TABLE other(a)")
    print("here:", stock(con))
    trial.close()
    con.close()


def take_over(url: str) -> None:
    chapter("Whoever writes last is the writer")
    with reef.connect(url.rpartition("/")[0]) as elsewhere:  # as another process would
        con = reef.sqlite.connect(url)
        rival = reef.sqlite.connect("shop.db", database=elsewhere)
        try:
            with con:
                con.execute("UPDATE stock SET count = 1")
                rival.execute("UPDATE stock SET count = 2")
        except FencedError as error:
            print("fenced:", error)
        print("and yet:", stock(con))
        rival.close()
        con.close()


if __name__ == "__main__":
    main()
