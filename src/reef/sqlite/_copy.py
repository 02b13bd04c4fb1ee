"""Databases as a whole: in from a file, out to one, back to an earlier version, and their history."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import apsw
import pyarrow as pa
import pyarrow.compute as pc

from reef.engine import COMMITTED_AT, Time
from reef.errors import AlreadyExistsError, CorruptError, InvalidInputError, NotFoundError
from reef.format import KEY, LSN
from reef.pages import EXTENT_KEY
from reef.sqlite._header import is_database, renumbered, size_in_header, without_wal

if TYPE_CHECKING:
    from reef.database import Database
    from reef.pages import Pages, PageView

_CHUNK_BYTES = 32 << 20
_PROBLEMS_LISTED = 5
_HISTORY = [LSN, COMMITTED_AT, KEY]

Progress = Callable[[int, int], None]
"""Called with the number of pages done, and of all pages."""


class CopyResult(NamedTuple):
    """What was copied."""

    lsn: int
    pages: int
    page_size: int
    size: int


class CommitOf(NamedTuple):
    """A commit, for people."""

    lsn: int
    committed_at_us: int | None
    pages: int
    """How many pages it wrote or cut off."""


def import_file(
    source: str | os.PathLike[str],
    db: Database,
    name: str,
    *,
    branch: str | None = None,
    progress: Progress = lambda done, total: None,
) -> CopyResult:
    """Copy a database file into a new page store `name`; SQLite checks it first.

    A large one goes in several commits, the first page in the last of them and empty before: until
    then, and after a crash, there is no database of that name, and it can be imported again. Raises
    AlreadyExistsError if there is one, CorruptError if SQLite finds fault with the file,
    InvalidInputError.
    """
    with ExitStack() as stack:
        path, page_size = _locked_source(Path(source), stack)
        # First: opening it for writing would fence its writer.
        _check_name_is_free(db, name, branch, page_size)
        pages = stack.enter_context(db.pages(name, branch=branch, page_size=page_size))
        size = path.stat().st_size
        total = size // page_size
        per_chunk = max(1, _CHUNK_BYTES // page_size)
        lsn = pages.head
        with path.open("rb") as file:
            first = without_wal(file.read(page_size))
            for start in range(1, total, per_chunk):
                ids = range(start, min(total, start + per_chunk))
                chunk = {page_id: file.read(page_size) for page_id in ids}
                is_last = ids.stop == total
                if is_last or start == 1:
                    chunk[0] = first if is_last else bytes(page_size)
                lsn = pages.write(chunk, n_pages=total if is_last else None)
                progress(ids.stop, total)
            if total == 1:
                lsn = pages.write({0: first}, n_pages=1)
    return CopyResult(lsn, total, page_size, size)


def _check_name_is_free(db: Database, name: str, branch: str | None, page_size: int) -> None:
    """Raise AlreadyExistsError if there is anything but what an import has left that was cut short.

    If that is of another page size, make way.
    """
    try:
        with db.pages(name, branch=branch, mode="r") as pages:
            if pages.n_pages and pages.get_page(0) != bytes(pages.page_size):
                raise AlreadyExistsError(
                    f"a database or page store {name!r} exists already in {db.store.url}: choose "
                    f"another name, or drop it (`reef.connect(url).drop({name!r})`)"
                )
            if pages.page_size == page_size:
                return
    except NotFoundError:
        return
    db.drop(name, branch=branch)


def _locked_source(source: Path, stack: ExitStack) -> tuple[Path, int]:
    """Return a file that does not change, and its page size; SQLite has found no fault with it."""
    try:
        connection = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
        stack.callback(connection.close)
        connection.execute("BEGIN")
        page_size = connection.execute("PRAGMA page_size").get
        if not connection.execute("SELECT count(*) FROM sqlite_schema").get:
            raise InvalidInputError(
                f"{str(source)!r} is empty: expected an SQLite database with something in it"
            )
        check_integrity(connection, str(source))
        if connection.execute("PRAGMA journal_mode").get == "wal":  # the newest is not in the file
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="reef-import-"))
            copy = Path(folder) / "copy.db"
            with closing(apsw.Connection(str(copy))) as target:
                with target.backup("main", connection, "main") as backup:
                    while not backup.done:
                        backup.step(1000)
                target.execute("PRAGMA journal_mode=DELETE").fetchall()
            source = copy
    except apsw.Error as error:
        if getattr(error, "extendedresult", 0) == apsw.SQLITE_READONLY_ROLLBACK:
            raise InvalidInputError(
                f"{str(source)!r} has a journal beside it: a transaction was not "
                "finished. Open the file once with SQLite, which undoes that (sqlite3 "
                f"{source} .schema), then import it again"
            ) from error
        raise InvalidInputError(
            f"{str(source)!r} is not a readable SQLite database: {error}"
        ) from error
    assert isinstance(page_size, int)
    return source, page_size


def check_integrity(connection: apsw.Connection, name: str) -> None:
    """Raise CorruptError if SQLite finds fault with a database."""
    found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
    if found != ["ok"]:
        raise CorruptError(
            name, 0, "a database that passes integrity_check", "; ".join(found[:_PROBLEMS_LISTED])
        )


def export_file(
    view: PageView,
    target: str | os.PathLike[str],
    *,
    progress: Progress = lambda done, total: None,
) -> CopyResult:
    """Write a version of a database to the new file `target`, and have SQLite check it.

    It gets its name when it is whole and checked. Raises AlreadyExistsError, CorruptError,
    InvalidInputError if it cannot be written there.
    """
    path = Path(target)
    if path.exists():
        raise AlreadyExistsError(f"{path} exists already: choose another name, or remove it")
    try:
        # In a folder of its own: whatever else lies beside `target` is the user's.
        with tempfile.TemporaryDirectory(prefix=f"{path.name}.", dir=path.parent) as folder:
            partial = Path(folder) / "partial"
            size = _write_pages(view, partial, progress)
            flags = apsw.SQLITE_OPEN_READONLY
            with closing(apsw.Connection(str(partial), flags=flags)) as connection:
                check_integrity(connection, str(path))
            os.link(partial, path)  # unlike a rename, it does not replace what came there meanwhile
    except FileExistsError:
        raise AlreadyExistsError(
            f"{path} exists already: choose another name, or remove it"
        ) from None
    except apsw.Error as error:
        raise CorruptError(str(path), 0, "an SQLite database", str(error)) from error
    except OSError as error:
        raise InvalidInputError(f"{str(path)!r} cannot be written: {error.strerror}") from error
    return CopyResult(view.lsn, view.n_pages, view.page_size, size)


def _write_pages(view: PageView, path: Path, progress: Progress) -> int:
    """Write a version to a file, durably; return how many bytes it has."""
    page_size, total = view.page_size, view.n_pages
    zeros = bytes(page_size)
    per_chunk = max(1, _CHUNK_BYTES // page_size)
    with path.open("wb") as file:
        for start in range(0, total, per_chunk):
            ids = range(start, min(total, start + per_chunk))
            file.writelines(page or zeros for page in view.get_pages(ids))
            progress(ids.stop, total)
        size = file.tell()
        header_size = size_in_header(view.get_page(0) or zeros)
        if size - page_size < header_size < size:
            file.truncate(size := header_size)
        file.flush()
        os.fsync(file.fileno())
    return size


def restore(pages: Pages, lsn: int | None = None, *, time: Time | None = None) -> int:
    """Make the state at an LSN, or a time, the newest again, as a commit of its own; return the newest LSN.

    The version that was the newest stays readable at its LSN. If nothing has changed since,
    nothing is written. Raises RetentionError, NotFoundError if there was no database then.
    """
    if (lsn is None) == (time is None):
        raise InvalidInputError("restore() takes one version: give lsn or time")
    if lsn is None:
        lsn = pages.at(time=time).lsn
    now, then = pages.at(lsn=pages.head), version_at(pages, lsn)
    n_now, n_then = now.n_pages, then.n_pages
    zeros = bytes(pages.page_size)
    first, newest = then.get_page(0) or zeros, now.get_page(0) or zeros
    per_chunk = max(1, _CHUNK_BYTES // pages.page_size)
    changed: dict[int, bytes] = {}
    for start in range(1, n_then, per_chunk):
        ids = range(start, min(n_then, start + per_chunk))
        for page_id, old, new in zip(ids, then.get_pages(ids), now.get_pages(ids), strict=True):
            if (old or zeros) != (new or zeros):
                changed[page_id] = old or zeros
    # By two numbers connections know whether their cached pages are good, and what they know of the
    # schema: neither may come back to what it was with other pages, or with another schema.
    changed[0] = renumbered(first, newest)
    is_same = n_now == n_then and changed[0] == renumbered(newest, first)
    if is_same and len(changed) == 1:
        return pages.head
    return pages.write(changed, n_pages=n_then)


def version_at(pages: Pages, lsn: int) -> PageView:
    """Return the version at `lsn`. Raises RetentionError, NotFoundError if there was no database then."""
    view = pages.at(lsn=lsn)
    if not is_database(view.get_page(0) or b""):
        raise NotFoundError(
            f"there was no database in {pages.name!r} at LSN {lsn}; `reef sqlite log` lists its commits"
        )
    return view


def history(pages: Pages, *, after: int | None = None) -> Iterator[CommitOf]:
    """Yield the commits that the log still has, in order. Raises RetentionError."""
    last: CommitOf | None = None
    for rows in pages._changes([], after, None, False):
        is_page = pc.not_equal(rows.column(KEY), EXTENT_KEY).cast(pa.int64())
        table = pa.table([rows.column(LSN), rows.column(COMMITTED_AT), is_page], _HISTORY)
        found = table.group_by(LSN, use_threads=False).aggregate(
            [(COMMITTED_AT, "max"), (KEY, "sum")]
        )
        times = pc.cast(found.column(f"{COMMITTED_AT}_max"), pa.int64()).to_pylist()
        counts = found.column(f"{KEY}_sum").to_pylist()
        for lsn, at, count in zip(found.column(LSN).to_pylist(), times, counts, strict=True):
            if last is not None and last.lsn == lsn:  # a large commit comes in several batches
                last = last._replace(pages=last.pages + count)
                continue
            if last is not None:
                yield last
            last = CommitOf(lsn, at, count)
    if last is not None:
        yield last
