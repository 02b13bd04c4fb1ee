"""`reef check-store`: the checks of `reef.store`, as a table or as JSON."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from reef.cli._report import Report, Table, progress_bars
from reef.cli._signals import unwind
from reef.cli.arguments import AsJson
from reef.clock import SystemClock
from reef.errors import UnavailableError
from reef.settings import load_settings

if TYPE_CHECKING:
    from reef.store import Check

# As `reef.store` has them: it takes too long to load for a line of help.
RACERS_DEFAULT, RACERS_MAX = 8, 256
ROUNDS_DEFAULT, ROUNDS_MAX = 100, 1_000_000
_LISTED_MAX = 10
_RESULTS = {True: ("yes", "green"), False: ("NO", "bold red"), None: ("-", "dim")}


def check_store(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="The store: file://, s3://, gs://, az:// or memory://."),
    ],
    racers: Annotated[
        int,
        typer.Option(
            metavar="N", min=2, max=RACERS_MAX, help="How many clients race to create each object."
        ),
    ] = RACERS_DEFAULT,
    rounds: Annotated[
        int,
        typer.Option(
            min=2,
            max=ROUNDS_MAX,
            metavar="N",
            help="How many objects to race for: half with threads, half with processes.",
        ),
    ] = ROUNDS_DEFAULT,
    as_json: AsJson = False,
) -> Report:
    """Test whether a store can back a log.

    Writes below check-store/<id>/, and removes it again. Exit code 2: the store cannot back a log;
    the reason is printed.
    """
    from reef.store import Check, StoreCheck, open_store

    unwind()
    with open_store(url) as store, progress_bars() as bars:
        check = StoreCheck(
            store,
            racers=racers,
            rounds=rounds,
            settings=load_settings(),
            clock=SystemClock(),
            rng=random.SystemRandom(),
            on_progress=bars,
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
    return _report(store.url, racers, rounds, checks, left)


def _report(
    url: str, racers: int, rounds: int, checks: Sequence[Check], left: Sequence[str]
) -> Report:
    from rich.text import Text

    failed = [f"{c.name}: {c.seen}" for c in checks if c.ok is False]
    verdict = f"{url} can back a log."
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        verdict = f"{url} cannot back a log: {failed[0]}{more}"
    rows = ((check.name, Text(*_RESULTS[check.ok]), check.seen) for check in checks)
    data = {
        "url": url,
        "can_back_a_log": not failed,
        "reason": failed[0] if failed else None,
        "racers": racers,
        "rounds": rounds,
        "checks": [dataclasses.asdict(check) for check in checks],
        "left": list(left),
    }
    table = Table(("check", "result", "seen"), rows)
    return Report(data, [table, verdict], is_problem=bool(failed))


def _say_what_is_left(url: str, left: Sequence[str]) -> None:
    if left:
        more = f" and {len(left) - _LISTED_MAX} more" if len(left) > _LISTED_MAX else ""
        listed = ", ".join(left[:_LISTED_MAX])
        print(f"reef: could not remove from {url}: {listed}{more}", file=sys.stderr)
