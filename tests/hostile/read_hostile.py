"""Go through hostile buckets with everything there is, in a process that may take little memory.

    python -m tests.hostile.read_hostile [--commands] HEALTHY WORK NAME...

Prints a JSON line for each case: what each call came to; with --commands, each command instead.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import reef
from reef import cli, doctor
from reef.engine import Context
from reef.errors import InvariantError, ReefError
from tests.hostile.hostile_buckets import CASES, NAMESPACE, Bucket
from tests.hostile.memory_limit import limit_memory


def commands(url: str, bucket: Bucket) -> Iterator[list[str]]:
    """Yield what an operator runs on a bucket that behaves oddly."""
    yield ["stats", url, NAMESPACE]
    yield ["verify", url, NAMESPACE]
    yield ["inspect", url, NAMESPACE]
    for path in sorted(bucket.folder.glob("manifest/*"))[-2:]:
        yield ["inspect", url, NAMESPACE, "manifest", str(int(path.name.split(".")[0]))]
    for path in sorted(bucket.folder.glob("wal/*"))[-2:]:
        yield ["inspect", url, NAMESPACE, "log", str(int(path.stem))]
    for path in sorted(bucket.folder.glob("segments/*")):
        yield ["inspect", url, NAMESPACE, "segment", path.stem, "--deep"]
        yield ["inspect", url, NAMESPACE, "block", path.stem, "0"]
    yield ["gc", url, NAMESPACE]
    yield ["repair", url, NAMESPACE]
    yield ["verify", url, NAMESPACE, "--deep", "--in-process"]
    yield ["repair", url, NAMESPACE, "--apply", "--accept-loss"]
    yield ["gc", url, NAMESPACE, "--apply"]
    yield ["verify", url, NAMESPACE]


def read(url: str) -> None:
    with reef.connect(url) as db, db.kv(NAMESPACE, mode="r") as kv:
        for key in (b"k000", b"k020", b"k999"):
            kv.get(key)
        list(kv.items())


def write(url: str) -> None:
    with reef.connect(url) as db, db.kv(NAMESPACE) as kv:
        kv.put(b"k020", b"again")
        kv.put(b"k021", b"again", idempotency_key="hostile-2")
        kv.flush()


def retry(url: str) -> None:
    rows = {b"k%03d" % i: b"%d of %d" % (i, 0) for i in range(40)}
    with reef.connect(url) as db, db.kv(NAMESPACE) as kv:
        kv.write(rows, idempotency_key="request-0")


def read_pages(url: str) -> None:
    with reef.connect(url) as db, db.pages(NAMESPACE, mode="r") as pages:
        pages.get_page(0)


def drop(url: str) -> None:
    with reef.connect(url) as db:
        db.drop(NAMESPACE)


def outcome(call: Callable[[], object]) -> str:
    """Return "ok" or the name of an error; one that is not Reef's, or a bug, is a finding."""
    try:
        result = call()
    except ReefError as error:
        text = f"{type(error).__name__}: {error}"
        return f"FINDING {text}" if isinstance(error, InvariantError) else text
    except BaseException as error:  # noqa: BLE001
        return f"FINDING {type(error).__name__}: {str(error)[:300]}"
    return f"exit {result}" if isinstance(result, int) else "ok"


def command(arguments: list[str]) -> int:
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = cli.run(arguments)
    if code not in (0, 1, 2):
        raise RuntimeError(f"exit code {code}: {said.getvalue()}")
    return code


def calls(context: Context, bucket: Bucket) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what commands call."""
    yield "verify", lambda: doctor.verify(context, NAMESPACE, deep=True)
    yield "stats", lambda: doctor.storage_stats(context, NAMESPACE)
    yield "inspect", lambda: doctor.inspect_namespace(context, NAMESPACE)
    yield "manifest", lambda: doctor.inspect_manifest(context, NAMESPACE)
    slot = bucket.last_slot
    yield "log", lambda: doctor.inspect_log(context, NAMESPACE, slot)
    first = min(path.stem for path in bucket.folder.glob("segments/*"))
    yield "segment", lambda: doctor.inspect_segment(context, NAMESPACE, first, deep=True)
    yield "block", lambda: doctor.inspect_block(context, NAMESPACE, first, 0)
    yield "repair", lambda: doctor.repair(context, NAMESPACE)
    repaired = partial(doctor.repair, context, NAMESPACE, apply=True, accept_loss=True)
    yield "repair --apply", repaired
    yield "gc --apply", lambda: command(["gc", url_of(bucket), NAMESPACE, "--apply"])


def url_of(bucket: Bucket) -> str:
    return f"file://{bucket.folder.parent.parent}?fsync=off"


def go_through(root: Path, name: str, *, has_commands: bool) -> dict[str, str]:
    bucket = Bucket(root)
    CASES[name](bucket)
    url = url_of(bucket)
    found: dict[str, str] = {}

    def note(what: str, call: Callable[[], object]) -> None:
        began = time.monotonic()
        found[what] = outcome(call)
        if "--times" in sys.argv:
            found[what] += f" {time.monotonic() - began:.2f}s"

    note("read", lambda: read(url))
    if "pages" in name:
        note("read pages", lambda: read_pages(url))
    if has_commands:
        for number, arguments in enumerate(commands(url, bucket)):
            shown = " ".join(word for word in arguments if word != url)
            note(f"{number} {shown}", partial(command, arguments))
    else:
        with reef.connect(url) as db:
            for what, call in calls(db.context(), bucket):
                note(what, call)
    for number, some in enumerate((read, retry, write, drop)):
        note(f"{number} {some.__name__} afterwards", partial(some, url))
    return found


def main() -> None:
    healthy, work, *names = (one for one in sys.argv[1:] if not one.startswith("--"))
    limit_memory()
    for name in names:
        root = Path(work) / name
        shutil.copytree(healthy, root)
        found = go_through(root, name, has_commands="--commands" in sys.argv)
        print(json.dumps({"case": name, "found": found}), flush=True)
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
