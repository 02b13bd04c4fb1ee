"""`reef sqlite`: databases of SQLite in buckets.

A database is given as one URL: its last part is the name, what is before it the bucket.
"""

from __future__ import annotations

import io
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from reef.cli._branch_commands import BranchTtl, Name, Source, branch_report
from reef.cli._report import Report, Table, progress_bars, size_text
from reef.cli._signals import unwind
from reef.cli._streams import failure_of
from reef.cli.arguments import ReadAt, RestoreAt, StartAt, connect, given_version, group
from reef.errors import InvalidInputError, ReefError

if TYPE_CHECKING:
    from reef.sqlite import CopyResult

DatabaseUrl: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="The database: the bucket, then the name: s3://bucket/app.db."
    ),
]
Branch: TypeAlias = Annotated[
    str | None, typer.Option("--branch", metavar="BRANCH", help="A branch of the database.")
]


def shell(
    url: DatabaseUrl,
    statements: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SQL", help="Statements or dot commands to run. [default: a prompt]"
        ),
    ] = None,
    branch: Branch = None,
    at: ReadAt = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse writes. The database must exist.")
    ] = False,
) -> None:
    """Run SQL, from a prompt or as given. The first write fences other writers."""
    _check_apsw()
    import apsw.shell

    from reef.sqlite import connect

    unwind()
    mode = "r" if read_only else "w"
    given = given_version(at)
    connection = connect(url, branch=branch, mode=mode, **given)
    try:
        if "time" in given:
            lsn = connection.execute("PRAGMA reef_lsn").get
            print(f"reef: at LSN {lsn}", file=sys.stderr)
        # The error below reports a failure, once. At a prompt, the shell also shows where, and goes on.
        at_prompt = not statements and sys.stdin.isatty()
        runner = apsw.shell.Shell(db=connection, stderr=None if at_prompt else io.StringIO())
        runner.bail = not at_prompt
        if statements:
            for statement in statements:
                runner.process_complete_line(statement)  # type: ignore[no-untyped-call]
        else:
            message = f"Reef, SQLite {apsw.sqlite_lib_version()}; .help, .quit\n"
            runner.cmdloop(message)  # type: ignore[no-untyped-call]
    except (apsw.Error, apsw.shell.Shell.Error, OSError) as error:
        if isinstance(error, ReefError) or failure_of(sys.stdout) is not None:
            raise
        raise InvalidInputError(f"SQLite: {error}") from error
    finally:
        connection.close()


def import_(
    url: DatabaseUrl,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The database file to copy.")],
) -> Report:
    """Copy a database file into the bucket, under a new name. SQLite checks the file first."""
    _check_apsw()
    from reef.sqlite import import_file, parse_location

    location = parse_location(url)
    with connect(location.bucket) as db, progress_bars() as bars:
        copied = import_file(
            file,
            db,
            location.name,
            branch=location.branch,
            progress=lambda done, total: bars("pages", done, total),
        )
    return _copied(copied, "imported")


def export(
    url: DatabaseUrl,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write; it must not exist.")
    ],
    branch: Branch = None,
    at: ReadAt = None,
) -> Report:
    """Write a version of a database to a file. SQLite checks the file."""
    _check_apsw()
    from reef.sqlite import export_file, parse_location, version_at

    given = given_version(at)
    location = parse_location(url).with_version(branch, given.get("lsn"))
    with (
        connect(location.bucket) as db,
        db.pages(location.name, branch=location.branch, mode="r") as pages,
        progress_bars() as bars,
    ):
        lsn = pages.at(**given).lsn if "time" in given else location.lsn
        view = version_at(pages, pages.head if lsn is None else lsn)
        copied = export_file(view, file, progress=lambda done, total: bars("pages", done, total))
    return _copied(copied, "exported")


def branch_(
    url: DatabaseUrl,
    name: Name,
    source: Source = None,
    at: StartAt = None,
    ttl: BranchTtl = None,
) -> Report:
    """Create a branch in constant time. `reef branch` lists, drops and detaches branches."""
    from reef.sqlite import parse_location

    location = parse_location(url).with_version(source, None)
    if at is None and location.lsn is not None:
        at = str(location.lsn)
    return branch_report(location.bucket, location.name, name, location.branch, at, ttl)


def log(
    url: DatabaseUrl,
    branch: Branch = None,
    after: Annotated[
        int | None,
        typer.Option("--after", min=0, metavar="LSN", help="Only commits after this LSN."),
    ] = None,
) -> Report:
    """List commits: LSN, time and number of pages. Goes as far back as the log is kept."""
    _check_apsw()
    from reef.sqlite import history, parse_location

    location = parse_location(url).with_version(branch, None)
    with (
        connect(location.bucket) as db,
        db.pages(location.name, branch=location.branch, mode="r") as pages,
    ):
        commits = [one._asdict() for one in history(pages, after=after)]
    data = {"database": location.name, "commits": commits}
    return Report(data, [Table.of(commits, "commits")])


def restore_(
    url: DatabaseUrl,
    at: RestoreAt,
    branch: Branch = None,
) -> Report:
    """Restore an earlier version, as a new commit. Newer versions stay readable.

    Fences other writers. To look first, export that version or make a branch at it.
    """
    _check_apsw()
    from reef.sqlite import parse_location, restore, version_at

    given = given_version(at)
    location = parse_location(url).with_version(branch, None)
    with connect(location.bucket) as db:
        # First: opening it for writing fences its writer.
        with db.pages(location.name, branch=location.branch, mode="r") as reader:
            lsn = given["lsn"] if "lsn" in given else reader.at(**given).lsn
            version_at(reader, lsn)
        with db.pages(location.name, branch=location.branch) as pages:
            before = pages.head
            newest = restore(pages, lsn)
    message = f"restored LSN {lsn} as LSN {newest}; the version before is at LSN {before}"
    if newest == before:
        message = f"nothing to restore: the newest version already equals LSN {lsn}"
    return Report({"restored_lsn": lsn, "lsn_before": before, "lsn": newest}, [message])


app = group(
    "sqlite",
    "SQLite databases in a bucket. Commits are durable, and old versions stay readable.",
    {
        "shell": shell,
        "import": import_,
        "export": export,
        "branch": branch_,
        "log": log,
        "restore": restore_,
    },
)


def _check_apsw() -> None:
    """Raise InvalidInputError if apsw is not installed."""
    if find_spec("apsw") is None:
        raise InvalidInputError(
            "SQLite databases need apsw, which is not installed: pip install 'reefdb[sqlite]'"
        )


def _copied(copied: CopyResult, what: str) -> Report:
    pages = f"{copied.pages} pages of {copied.page_size} bytes"
    return Report(
        copied._asdict(),
        [f"{what} {pages} ({size_text(copied.size)}) at LSN {copied.lsn}; integrity_check: ok"],
    )
