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

from reef.cli._bucket import AsJson, connect
from reef.cli._interrupts import unwind
from reef.cli._output import print_json, print_table, progress_bars, size_text, time_text
from reef.cli._streams import failure_of
from reef.errors import InvalidInputError, ReefError

if TYPE_CHECKING:
    from reef.sqlite import CopyResult

app = typer.Typer(
    name="sqlite",
    help="SQLite databases in a bucket, with durable commits and readable old versions.",
    add_completion=False,
    rich_markup_mode=None,
)

DatabaseUrl: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="The database: the bucket, then the name: s3://bucket/app.db."
    ),
]
Branch: TypeAlias = Annotated[
    str | None, typer.Option("--branch", metavar="BRANCH", help="A branch of the database.")
]
At: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--lsn", "--at", min=0, max=2**63 - 1, metavar="LSN", help="Read the version at this LSN."
    ),
]
StartAt: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--lsn",
        "--at",
        min=0,
        max=2**63 - 1,
        metavar="LSN",
        help="The version to start from. [default: the newest]",
    ),
]


@app.command("shell")
def shell(
    url: DatabaseUrl,
    statements: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SQL", help="Statements or dot commands to run. [default: a prompt]"
        ),
    ] = None,
    branch: Branch = None,
    lsn: At = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse writes. The database must exist.")
    ] = False,
) -> None:
    """Run SQL, from a prompt or as given. The first write fences other writers."""
    _check_apsw()
    import apsw.shell

    from reef.sqlite import connect

    unwind()
    connection = connect(url, branch=branch, lsn=lsn, mode="r" if read_only else "w")
    try:
        # The error below reports a failure, once. At a prompt, the shell also shows where, and goes on.
        at_prompt = not statements and sys.stdin.isatty()
        runner = apsw.shell.Shell(db=connection, stderr=None if at_prompt else io.StringIO())
        runner.bail = not at_prompt
        if statements:
            for statement in statements:
                runner.process_complete_line(statement)  # type: ignore[no-untyped-call]
        else:
            said = f"Reef, SQLite {apsw.sqlite_lib_version()}; .help, .quit\n"
            runner.cmdloop(said)  # type: ignore[no-untyped-call]
    except (apsw.Error, apsw.shell.Shell.Error, OSError) as error:
        if isinstance(error, ReefError) or failure_of(sys.stdout) is not None:
            raise
        raise InvalidInputError(f"SQLite: {error}") from error
    finally:
        connection.close()


@app.command("import")
def import_(
    url: DatabaseUrl,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The database file to copy.")],
    as_json: AsJson = False,
) -> None:
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
    _print_copied(copied, "imported", as_json)


@app.command("export")
def export(
    url: DatabaseUrl,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write; it must not exist.")
    ],
    branch: Branch = None,
    lsn: At = None,
    as_json: AsJson = False,
) -> None:
    """Write a version of a database to a file. SQLite checks the file."""
    _check_apsw()
    from reef.sqlite import export_file, parse_location, version_at

    location = parse_location(url).with_version(branch, lsn)
    with (
        connect(location.bucket) as db,
        db.pages(location.name, branch=location.branch, mode="r") as pages,
        progress_bars() as bars,
    ):
        view = version_at(pages, pages.head if location.lsn is None else location.lsn)
        copied = export_file(view, file, progress=lambda done, total: bars("pages", done, total))
    _print_copied(copied, "exported", as_json)


@app.command("branch")
def branch_(
    url: DatabaseUrl,
    name: Annotated[str, typer.Argument(metavar="BRANCH", help="The name of the new branch.")],
    source: Annotated[
        str | None, typer.Option("--from", metavar="BRANCH", help="Start from this branch.")
    ] = None,
    lsn: StartAt = None,
    as_json: AsJson = False,
) -> None:
    """Create a branch in constant time. `reef branch` lists, drops and detaches branches."""
    from reef.engine import create_branch
    from reef.sqlite import parse_location
    from reef.types import namespace_of

    location = parse_location(url).with_version(source, lsn)
    parent = namespace_of(location.name, location.branch)
    child = namespace_of(location.name, name)
    with connect(location.bucket) as db:
        made = create_branch(db.context(), parent, child, location.lsn)
    if as_json:
        print_json(made._asdict())
    else:
        print(f"{made.name} of {made.parent} at LSN {made.lsn}")


@app.command("log")
def log(
    url: DatabaseUrl,
    branch: Branch = None,
    after: Annotated[
        int | None,
        typer.Option("--after", min=0, metavar="LSN", help="Only commits after this LSN."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List commits: LSN, time and number of pages, as far back as the log is kept."""
    _check_apsw()
    from reef.sqlite import history, parse_location

    location = parse_location(url).with_version(branch, None)
    with (
        connect(location.bucket) as db,
        db.pages(location.name, branch=location.branch, mode="r") as pages,
    ):
        commits = list(history(pages, after=after))
    if as_json:
        print_json({"database": location.name, "commits": [one._asdict() for one in commits]})
        return
    print_table(
        ("LSN", "time (UTC)", "pages"),
        ((one.lsn, time_text(one.committed_at_us), one.pages) for one in commits),
        title="commits",
    )


@app.command("restore")
def restore_(
    url: DatabaseUrl,
    lsn: Annotated[
        int,
        typer.Option(
            "--lsn", "--at", min=0, max=2**63 - 1, metavar="LSN", help="The version to restore."
        ),
    ],
    branch: Branch = None,
    as_json: AsJson = False,
) -> None:
    """Restore an earlier version, as a new commit. Newer versions stay readable.

    Fences other writers. To look first, export that version or make a branch at it.
    """
    _check_apsw()
    from reef.sqlite import parse_location, restore, version_at

    location = parse_location(url).with_version(branch, None)
    with connect(location.bucket) as db:
        # First: opening it for writing fences its writer.
        with db.pages(location.name, branch=location.branch, mode="r") as reader:
            version_at(reader, lsn)
        with db.pages(location.name, branch=location.branch) as pages:
            before = pages.head
            newest = restore(pages, lsn)
    if as_json:
        print_json({"restored_lsn": lsn, "lsn_before": before, "lsn": newest})
    elif newest == before:
        print(f"nothing to restore: the newest version already equals LSN {lsn}")
    else:
        print(f"restored LSN {lsn} as LSN {newest}; the version before is at LSN {before}")


def _check_apsw() -> None:
    """Raise InvalidInputError if apsw is not installed."""
    if find_spec("apsw") is None:
        raise InvalidInputError(
            "SQLite databases need apsw, which is not installed: pip install 'reefdb[sqlite]'"
        )


def _print_copied(copied: CopyResult, what: str, as_json: bool) -> None:
    if as_json:
        print_json(copied._asdict())
    else:
        pages = f"{copied.pages} pages of {copied.page_size} bytes"
        print(f"{what} {pages} ({size_text(copied.size)}) at LSN {copied.lsn}; integrity_check: ok")
