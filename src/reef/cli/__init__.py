"""The command `reef`.

Exit codes: 0 fine; 1 the command line, the URL, a setting or a credential must be fixed; 2 a
problem was found, or the store gave no answer; 130 interrupted. Errors are one line on stderr.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import reef
from reef.cli import _kv, _snapshot
from reef.cli._check_store import check_store
from reef.cli._gc import gc
from reef.cli._inspect import inspect
from reef.cli._repair import repair
from reef.cli._stats import stats
from reef.cli._verify import verify
from reef.errors import InvalidInputError, ReefError

OK, USAGE, PROBLEM, INTERRUPTED = 0, 1, 2, 130

# Typer keeps to itself what it raises for a command line that cannot be.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_OPTIONS_OF_URL = re.compile(r"(\w+://[^\s?'\"]*)\?[^\s'\"]*")
_USER_OF_URL = re.compile(r"(\w+://)[^\s/@'\"]+@")

app = typer.Typer(
    name="reef",
    help="A database engine whose only durable state is a bucket.",
    epilog="Exit codes: 0 fine, 1 fix the command line, 2 a problem was found, 130 interrupted.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _command in (
    ("stats", stats),
    ("inspect", inspect),
    ("verify", verify),
    ("repair", repair),
    ("gc", gc),
    ("check-store", check_store),
):
    app.command(_name)(_command)
app.add_typer(_snapshot.app)
app.add_typer(_kv.app)


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not know every character
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code; an error is one line on stderr."""
    try:
        code = app(list(arguments) or ["--help"], prog_name="reef", standalone_mode=False)
    except _UsageError as error:
        return _fail(f"{_message(error)} (reef --help)", USAGE)
    except InvalidInputError as error:
        return _fail(str(error), USAGE)
    except ReefError as error:
        return _fail(str(error), PROBLEM)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return code if isinstance(code, int) else OK


def _message(error: Exception) -> str:
    formatted: str = getattr(error, "format_message", lambda: str(error))()
    return formatted


def _fail(message: str, code: int) -> int:
    line = " ".join(without_credentials(message).split())
    print(f"reef: {line}", file=sys.stderr)
    return code


def without_credentials(text: str) -> str:
    """Return `text` with the options and the user of every URL in it left out."""
    return _USER_OF_URL.sub(r"\1...@", _OPTIONS_OF_URL.sub(r"\1?...", text))
