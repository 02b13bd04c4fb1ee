"""The demo that `make demo` runs: a database in a folder, and what it survives.

It uses a `file://` bucket in `.cache/demo`, made anew each time and left for you to look at.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import reef

console = Console(highlight=False)
BUCKET = Path(__file__).resolve().parent.parent / ".cache" / "demo" / "bucket"
URL = BUCKET.as_uri()


def main() -> None:
    shutil.rmtree(BUCKET, ignore_errors=True)
    BUCKET.parent.mkdir(parents=True, exist_ok=True)
    can_this_store_back_a_log()
    with reef.connect(URL) as db:
        write_and_read(db)
        travel_in_time(db)
        retry_without_doubling(db)
        two_writers(db)
    kill_a_writer()
    look_after_it()
    show_the_bucket()


def chapter(title: str, text: str) -> None:
    console.print()
    console.rule(f"[bold]{title}", align="left")
    console.print(text, style="dim")


def command(*arguments: str) -> None:
    """Run the command `reef` and show how it was called."""
    console.print(f"$ reef {' '.join(arguments)}", style="bold")
    subprocess.run([sys.executable, "-m", "reef", *arguments], check=True)


def can_this_store_back_a_log() -> None:
    chapter("1. Can this store back a log?", "Creators race for the same names; one may win.")
    command("check-store", URL, "--rounds", "40")


def write_and_read(db: reef.Database) -> None:
    chapter("2. Bytes to bytes", "A commit is one log object, created under the next number.")
    with db.kv("sessions") as kv:
        kv.write({b"user/%03d" % i: b"logged in" for i in range(200)})
        receipt = kv.write(puts={b"user/200": b"new"}, deletes=[b"user/007"])
        console.print(f"201 puts and a delete in two commits, durable at LSN {receipt.lsn}")
        console.print(f"user/001 is {kv.get(b'user/001')!r}, user/007 is {kv.get(b'user/007')!r}")
        found = list(kv.items(prefix=b"user/01", reverse=True))
        console.print(f"user/01...: {len(found)} keys, from {found[0][0]!r} to {found[-1][0]!r}")
        kv.flush()
        stats = kv.stats()
        console.print(f"folded into a segment: {stats['levels']}")


def travel_in_time(db: reef.Database) -> None:
    chapter(
        "3. The past stays", "Nothing is overwritten: a view is a version, a snapshot keeps it."
    )
    with db.kv("sessions") as kv:
        before = kv.lsn
        with kv.snapshot(ttl="1h") as snapshot:
            kv.put(b"user/001", b"logged out")
            kv.flush()
            table = Table("asked", "user/001")
            table.add_row("now", repr(kv.get(b"user/001")))
            table.add_row(f"at LSN {before}", repr(kv.at(lsn=before).get(b"user/001")))
            table.add_row(f"in snapshot {snapshot.id}", repr(snapshot.get(b"user/001")))
            console.print(table)


def retry_without_doubling(db: reef.Database) -> None:
    chapter("4. Retries and conditions", "The same idempotency key again writes nothing.")
    with db.kv("sessions") as kv:
        first = kv.put(b"order/1", b"3 apples", idempotency_key="request-1")
        again = kv.put(b"order/1", b"3 apples", idempotency_key="request-1")
        console.print(f"first {first.lsn}, again {again.lsn}, replayed: {again.replayed}")
        try:
            kv.put(b"order/1", b"9 pears", condition=reef.CreateOnly())
        except reef.ConditionFailedError as error:
            console.print(f"[yellow]{error}[/yellow]")


def two_writers(db: reef.Database) -> None:
    chapter("5. One writer", "Opening for writing fences whoever wrote before, for good.")
    old, new = db.kv("sessions"), db.kv("sessions")
    new.put(b"who", b"the new one")
    try:
        old.put(b"who", b"the old one")
    except reef.FencedError as error:
        console.print(f"[yellow]{error}[/yellow]")
    reader = db.kv("sessions", mode="r")
    console.print(f"a reader sees {reader.get(b'who')!r}")


WRITER = """
import sys, reef
kv = reef.connect(sys.argv[1]).kv("events", flush_threshold_slots=50)
for number in range(10**9):
    kv.put(b"event/%09d" % number, b"something happened")
    print(number, flush=True)  # acknowledged
"""


def kill_a_writer() -> None:
    chapter("6. kill -9", "A process writes and reports what was acknowledged. Then it is gone.")
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, URL], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    acknowledged = int(writer.stdout.readline())  # now it has imported all that it needs
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        acknowledged = int(writer.stdout.readline())
    os.kill(writer.pid, signal.SIGKILL)
    # What it had still said before it died counts as well.
    acknowledged = max([acknowledged, *map(int, writer.stdout.read().split()[:-1])])
    writer.wait()
    with reef.connect(URL) as db, db.kv("events", mode="r") as kv:
        there = sum(batch.num_rows for batch in kv.scan())
    console.print(f"acknowledged: {acknowledged + 1}, there: {there}")
    assert there >= acknowledged + 1


def look_after_it() -> None:
    chapter("7. Looking after it", "Everything can be looked at, checked and cleaned from outside.")
    command("stats", URL, "events")
    command("verify", URL, "--all", "--deep")
    command("gc", URL, "events")


def show_the_bucket() -> None:
    chapter("8. The bucket", f"All there is lies in {BUCKET}")
    table = Table("folder", "objects", "bytes")
    for folder in sorted(path for path in BUCKET.rglob("*") if path.is_dir()):
        files = [path for path in folder.iterdir() if path.is_file()]
        if files:
            size = sum(path.stat().st_size for path in files)
            table.add_row(str(folder.relative_to(BUCKET)), f"{len(files):,}", f"{size:,}")
    console.print(table)


if __name__ == "__main__":
    main()
