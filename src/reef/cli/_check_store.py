"""`reef check-store`: the checks of `reef.store`, as a table or as JSON."""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from reef.clock import SystemClock
from reef.errors import UnavailableError
from reef.settings import load_settings
from reef.store import Check, StoreCheck, open_store
from reef.store._check import RACERS_DEFAULT, RACERS_MAX, ROUNDS_DEFAULT, ROUNDS_MAX

_CANNOT = 2
_SHOWN_MAX = 10
_RESULTS = {True: ("yes", "green"), False: ("NO", "bold red"), None: ("-", "dim")}


def check_store(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="The store: file://, s3://, gs://, az://, memory://."),
    ],
    racers: Annotated[
        int,
        typer.Option(min=2, max=RACERS_MAX, help="Creators that race for each name."),
    ] = RACERS_DEFAULT,
    rounds: Annotated[
        int,
        typer.Option(
            min=2,
            max=ROUNDS_MAX,
            help="Names to race for: half by threads, then half by processes.",
        ),
    ] = ROUNDS_DEFAULT,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Show on the store itself whether it can back a log.

    Works under a prefix of its own, check-store/<id>/, and removes it. Exit code 0: it can;
    2: it cannot, and why.
    """
    with open_store(url) as store, _progress(Console(stderr=True)) as progress:
        races = _Races(progress)
        check = StoreCheck(
            store,
            racers=racers,
            rounds=rounds,
            settings=load_settings(),
            clock=SystemClock(),
            rng=random.SystemRandom(),
            on_progress=races.update,
        )
        left: Sequence[str] = [f"{check.prefix}..."]
        checks: list[Check] = []
        try:
            checks = list(check.run())
        except UnavailableError as error:
            if not as_json:
                raise
            checks = [Check("answer", False, str(error))]
        finally:
            try:
                left = check.remove()
            finally:
                _say_what_is_left(store.url, left)
    failed = [c for c in checks if c.ok is False]
    if as_json:
        print(_as_json(store.url, racers, rounds, checks, left))
    else:
        Console(highlight=False).print(_as_table(checks))
        print(_verdict(store.url, failed))
    if failed:
        raise typer.Exit(_CANNOT)


def _verdict(url: str, failed: Sequence[Check]) -> str:
    if not failed:
        return f"{url} can back a log."
    first = failed[0]
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    return f"{url} cannot back a log: {first.name}: {first.seen}{more}"


def _as_table(checks: Sequence[Check]) -> Table:
    table = Table()
    for column in ("check", "result", "seen"):
        table.add_column(column, overflow="fold")
    for check in checks:
        result, style = _RESULTS[check.ok]
        table.add_row(check.name, Text(result, style), Text(check.seen))
    return table


def _as_json(
    url: str, racers: int, rounds: int, checks: Sequence[Check], left: Sequence[str]
) -> str:
    failed = [c for c in checks if c.ok is False]
    report = {
        "url": url,
        "can_back_a_log": not failed,
        "reason": f"{failed[0].name}: {failed[0].seen}" if failed else None,
        "racers": racers,
        "rounds": rounds,
        "checks": [dataclasses.asdict(check) for check in checks],
        "left": list(left),
    }
    return json.dumps(report, indent=2)


def _progress(console: Console) -> Progress:
    """A bar on a terminal, and nothing in a file or a pipe."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class _Races:
    """The progress of each race, a bar for each."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def update(self, name: str, done: int, total: int) -> None:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=total)
        self._progress.update(self._bars[name], completed=done)


def _say_what_is_left(url: str, left: Sequence[str]) -> None:
    if left:
        more = f" and {len(left) - _SHOWN_MAX} more" if len(left) > _SHOWN_MAX else ""
        shown = ", ".join(left[:_SHOWN_MAX])
        print(f"reef: could not remove from {url}: {shown}{more}", file=sys.stderr)
