"""The commands, and how one is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

import reef
from reef.cli import _branch_commands, _kv, _snapshot, _sqlite, docs
from reef.cli._settings_command import settings
from reef.cli.arguments import add_commands
from reef.cli.health import check_store, gc, inspect, repair, stats, verify
from reef.cli.pipeline import compact, copy, export, index, ingest, jobs_app, rebuild, worker
from reef.errors import InvalidInputError

# Typer keeps to itself what it raises for a command line that cannot be.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="reef",
    help="A database engine whose only durable state is a bucket.",
    epilog="`reef COMMAND --help` lists the options of a command. Exit codes: 0 fine, 1 fix the command line, 2 a problem was found, "
    "3 stdout could not be written, 130 interrupted, 143 terminated.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_commands(
    app,
    {
        "stats": stats,
        "inspect": inspect,
        "verify": verify,
        "repair": repair,
        "gc": gc,
        "settings": settings,
        "check-store": check_store,
        "index": index,
        "compact": compact,
        "rebuild": rebuild,
        "copy": copy,
        "ingest": ingest,
        "export": export,
        "worker": worker,
    },
)
for _group in (docs.app, _snapshot.app, _branch_commands.app, _kv.app, _sqlite.app, jobs_app):
    app.add_typer(_group)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"reef {reef.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


def invoke(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. Raises InvalidInputError for what it cannot take.

    Not `app()`: that makes something of its own of Ctrl-C and of pipes that nobody reads.
    """
    command = typer.main.get_command(app)
    try:
        with command.make_context("reef", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except _UsageError as error:
        message: str = getattr(error, "format_message", error.__str__)()
        raise InvalidInputError(f"{message} (reef --help)") from error
    return 0
