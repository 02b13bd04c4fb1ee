"""The tour that `make demo` runs: every face of Reef on a local folder, in about a minute.

Each step checks its result with an assertion. The bucket is `.cache/demo/bucket`, or a folder that
you name: `python examples/demo.py FOLDER`. The tour makes it anew and leaves it for you to look at.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import apsw
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import reef
import reef.sqlite
from reef.documents import Documents

console = Console(highlight=False)
HOME = Path(__file__).resolve().parent.parent / ".cache" / "demo"
BUCKET = Path(sys.argv[1] if len(sys.argv) > 1 else HOME).resolve() / "bucket"
URL = BUCKET.as_uri()

# The products of the document chapters, as columns: each answer is checked against NumPy's.
COUNT = 20_000
NUMBERS = np.arange(COUNT)
KINDS = np.array(["fruit", "tool", "book", "toy"])[NUMBERS % 4]
PRICES = (NUMBERS * 7919 % 9900 + 100) / 100
VECTORS = np.random.default_rng(7).standard_normal((COUNT, 64), np.float32)


def main() -> None:
    began = time.monotonic()
    shutil.rmtree(BUCKET, ignore_errors=True)
    BUCKET.parent.mkdir(parents=True, exist_ok=True)
    check_the_store()
    with reef.connect(URL) as db:
        with db.namespace("products") as products:
            write_documents(products)
            query_documents(products)
            travel_in_time(products)
            branch(db, products)
        keys_and_values(db)
        replace_the_writer(db)
    sqlite()
    fold_on_spark()
    kill_a_writer()
    check_the_bucket()
    say(f"\nEvery check passed, in {time.monotonic() - began:.0f} s.", "bold")
    say("To read on: README.md, examples/documents.py, examples/sqlite.py, `reef --help`.")


def say(text: str, style: str = "") -> None:
    console.print(escape(text), style=style, soft_wrap=True)


def chapter(title: str, text: str) -> None:
    console.print()
    console.rule(f"[bold]{title}", align="left")
    say(text, "dim")


def command(*arguments: str) -> None:
    """Print a `reef` command, and run it."""
    say(f"$ reef {' '.join(arguments)}", "bold")
    subprocess.run([sys.executable, "-m", "reef", *arguments], check=True)


def check_the_store() -> None:
    chapter(
        "1. Can this store hold a log?",
        "Reef needs one promise: of many processes that create the same object, one succeeds.",
    )
    command("check-store", URL, "--rounds", "40")


def write_documents(ns: Documents) -> None:
    chapter("2. Documents", "A batch is one commit. When upsert returns, the batch is durable.")
    ids = [f"product-{number:05}" for number in NUMBERS]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(VECTORS.ravel()), 64)
    rows = {"id": ids, "kind": KINDS, "price": PRICES, "vector": vectors}
    receipt = ns.upsert(pa.table(rows))
    say(f"{receipt.upserted:,} documents in one commit, LSN {receipt.lsn}; schema: {ns.schema}")

    row = ns.get("product-00042", columns=["kind", "price"])
    say(f"by id: {row}")
    assert row == {"id": "product-00042", "kind": "book", "price": PRICES[42]}

    try:
        ns.upsert([{"id": "good", "price": 1.0}, {"id": "bad", "price": "cheap"}])
    except reef.InvalidInputError as error:
        say(f"one bad row, and the batch is refused: {error}", "yellow")
    assert ns.get("good") is None


def query_documents(ns: Documents) -> None:
    chapter("3. Search and SQL", "Filters, exact vector search, and SQL over the same documents.")
    where = "kind = 'book' and price < 5"
    page = ns.query(where=where, order_by="price", limit=3, columns=["price"])
    say(f"{ns.count(where)} documents match {where!r}; the cheapest: {page.to_pylist()}")
    matching = np.sort(PRICES[(KINDS == "book") & (PRICES < 5)])
    assert ns.count(where) == len(matching)
    assert page["price"].to_pylist() == matching[:3].tolist()

    wanted = VECTORS[123] + 0.01
    nearest = ns.query(vector=wanted, metric="l2", limit=3, columns=["kind"])
    say(f"nearest to a vector: {nearest.to_pylist()}")
    best = np.argsort(((VECTORS - wanted) ** 2).sum(axis=1))[:3]
    assert nearest["id"].to_pylist() == [f"product-{number:05}" for number in best]

    query = (
        "select kind, count(*) as n, round(avg(price), 2) as mean from docs group by 1 order by 1"
    )
    answer = ns.sql(query).to_pylist()
    say(query)
    for row in answer:
        say(f"    {row}")
    assert [row["n"] for row in answer] == [COUNT // 4] * 4


def travel_in_time(ns: Documents) -> None:
    chapter("4. Time travel", "A write adds a version. Older versions stay readable.")
    before = ns.lsn
    with ns.snapshot("10m") as snapshot:
        deleted = ns.delete_where("price > 10").deleted
        table = Table("read", "documents")
        counts = {"now": ns.count(), f"at LSN {before}": ns.at(lsn=before).count()}
        counts["in the snapshot"] = snapshot.count()
        for view, count in counts.items():
            table.add_row(view, f"{count:,}")
        console.print(table)
        assert list(counts.values()) == [COUNT - deleted, COUNT, COUNT]
        assert deleted == np.count_nonzero(PRICES > 10)


def branch(db: reef.Database, ns: Documents) -> None:
    chapter("5. Branches", "A branch copies nothing. What you write to it stays in it.")
    ns.branch("sale")
    with db.namespace("products", branch="sale") as sale:
        sale.patch_where("true", {"price": 0.99})
        prices = [
            view.aggregate({"most": ("max", "price")}).to_pylist()[0]["most"] for view in (ns, sale)
        ]
        say(f"the highest price: {prices[0]} in products, {prices[1]} in products@sale")
        assert prices[0] > 9
        assert prices[1] == 0.99
    ns.drop_branch("sale")
    assert ns.branches() == []


def keys_and_values(db: reef.Database) -> None:
    chapter("6. Keys and values", "Bytes to bytes. A retry with the same key writes nothing.")
    with db.kv("sessions") as kv:
        kv.write({b"user/%03d" % number: b"logged in" for number in range(200)})
        kv.write(puts={b"user/200": b"new"}, deletes=[b"user/007"])
        users = dict(kv.items(prefix=b"user/"))
        say(f"{len(users)} users; user/001 is {kv.get(b'user/001')!r}, 007 {kv.get(b'user/007')!r}")
        assert len(users) == 200
        assert b"user/007" not in users

        first = kv.put(b"order/1", b"3 apples", idempotency_key="request-1")
        again = kv.put(b"order/1", b"3 apples", idempotency_key="request-1")
        say(f"first try: LSN {first.lsn}; retry: LSN {again.lsn}, replayed: {again.replayed}")
        assert again.lsn == first.lsn
        try:
            kv.put(b"order/1", b"9 pears", condition=reef.CreateOnly())
        except reef.ConditionFailedError as error:
            say(f"create only: {error}", "yellow")
        assert kv.get(b"order/1") == b"3 apples"


def replace_the_writer(db: reef.Database) -> None:
    chapter("7. One writer", "Opening a namespace for writing fences the writer before, for good.")
    old, new = db.kv("sessions"), db.kv("sessions")
    new.put(b"writer", b"new")
    try:
        old.put(b"writer", b"old")
    except reef.FencedError as error:
        say(f"the old writer: {error}", "yellow")
    with db.kv("sessions", mode="r") as reader:
        value = reader.get(b"writer")
    say(f"a reader sees {value!r}")
    assert value == b"new"
    old.close()
    new.close()


def sqlite() -> None:
    chapter("8. SQLite", "Unmodified SQLite with its database in the bucket. COMMIT is durable.")
    url = f"{URL}/shop.db"
    con = reef.sqlite.connect(url)
    con.execute("CREATE TABLE stock(name PRIMARY KEY, count CHECK (count >= 0))")
    with con:
        con.executemany("INSERT INTO stock VALUES (?, ?)", [("apple", 10), ("knife", 3)])
    before = int(str(con.execute("PRAGMA reef_lsn").get))
    try:
        with con:
            con.execute("UPDATE stock SET count = count - 1 WHERE name = 'knife'")
            con.execute("UPDATE stock SET count = count - 11 WHERE name = 'apple'")
    except apsw.ConstraintError as error:
        say(f"rolled back: {error}", "yellow")
    con.execute("UPDATE stock SET count = 0")
    past = reef.sqlite.connect(url, lsn=before)
    now, then = stock(con), stock(past)
    past.close()
    con.close()
    say(f"now {now}; at LSN {before} {then}")
    assert (now, then) == ({"apple": 0, "knife": 0}, {"apple": 10, "knife": 3})


def stock(con: apsw.Connection) -> dict[str, int]:
    return {str(name): int(str(count)) for name, count in con.execute("SELECT * FROM stock")}


def fold_on_spark() -> None:
    chapter(
        "9. A fold on Spark",
        "The log becomes sorted segments, in parallel tasks. Readers and writers continue.",
    )
    command("index", URL, "--all", "--master", "local[2]")
    with reef.connect(URL) as db, db.namespace("products", mode="r") as ns:
        stats, left = ns.stats(), ns.count()
    say(f"log objects left to fold: {stats['unfolded_log']['slots']}; levels: {stats['levels']}")
    assert stats["levels"]
    assert left == np.count_nonzero(PRICES <= 10)


WRITER = """
import sys, reef
kv = reef.connect(sys.argv[1]).kv("events", flush_threshold_slots=50)
for number in range(10**9):
    kv.put(b"event/%09d" % number, b"something happened")
    print(number, flush=True)  # acknowledged
"""


def kill_a_writer() -> None:
    chapter("10. kill -9", "A process writes, and prints each acknowledged write. Then we kill it.")
    start = [sys.executable, "-c", WRITER, URL]
    with subprocess.Popen(start, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        acknowledged = int(writer.stdout.readline())  # the writer has started
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            acknowledged = int(writer.stdout.readline())
        writer.kill()
        # What it printed before it died counts too; its last line may have been cut off.
        printed = writer.stdout.read().split("\n")[:-1]
    acknowledged = max([acknowledged, *map(int, printed)])
    with reef.connect(URL) as db, db.kv("events", mode="r") as kv:
        events = dict(kv.items())
    say(f"acknowledged: {acknowledged + 1:,}; found in the bucket: {len(events):,}")
    # All acknowledged writes are there; one more may have been under way.
    for number in range(acknowledged + 1):
        assert events[b"event/%09d" % number] == b"something happened"
    assert len(events) <= acknowledged + 2


def check_the_bucket() -> None:
    chapter("11. The bucket", "Check every byte; then look at the objects, which are plain files.")
    command("verify", URL, "--all", "--deep", "--in-process")
    command("stats", URL, "events")
    table = Table("folder", "objects", "bytes")
    for folder in sorted(path for path in BUCKET.rglob("*") if path.is_dir()):
        sizes = [path.stat().st_size for path in folder.iterdir() if path.is_file()]
        if sizes:
            table.add_row(str(folder.relative_to(BUCKET)), f"{len(sizes):,}", f"{sum(sizes):,}")
    console.print(table)
    say(f"All of it lies in {BUCKET}")


if __name__ == "__main__":
    main()
