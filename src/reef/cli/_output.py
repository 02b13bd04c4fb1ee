"""How commands show things: tables for people, JSON for programs, bars on a terminal."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SHOWN_MAX = 50
FILE_WIDTH = 200
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def print_json(report: object) -> None:
    """Print one JSON value."""
    print(json.dumps(report, indent=2))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str = "",
) -> None:
    """Print a table; of a very long one the end, with how much was left out."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    listed = list(rows)
    left = max(0, len(listed) - SHOWN_MAX)
    if title:
        more = f", the first {left} not shown (--json shows all)" if left else ""
        title = f"{title}: {len(listed)}{more}"
    table = Table(title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in listed[left:]:
        table.add_row(
            *(
                cell if isinstance(cell, Text) else Text("" if cell is None else str(cell))
                for cell in row
            )
        )
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH  # nobody sees it fold
    sys.stdout.flush()  # left to the console, a pipe that nobody reads would end the process its way
    with console.capture() as drawn:
        console.print(table)
    sys.stdout.write(drawn.get())


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one to a line."""
    listed = [(name, "-" if value is None else str(value)) for name, value in facts]
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        print(f"{name:<{width}}  {value}")


def size_text(size: int) -> str:
    """Return bytes as people read them."""
    value = float(size)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def time_text(micros: int | None) -> str:
    """Return microseconds since 1970 as a date and a time, in UTC."""
    if micros is None:
        return "-"
    try:
        return datetime.datetime.fromtimestamp(micros / 1e6, datetime.UTC).strftime(
            "%Y-%m-%d %H:%M:%S"
        )
    except (OverflowError, ValueError, OSError):
        return f"{micros} µs"  # a damaged or a foreign clock


def key_text(key: bytes, most: int = 60) -> str:
    """Return a key as text if it is some, else as hexadecimal digits."""
    try:
        text = key.decode()
        if text.isprintable():
            return text if len(text) <= most else f"{text[:most]}..."
    except UnicodeDecodeError:
        pass
    digits = key.hex()
    return f"0x{digits}" if len(digits) <= most else f"0x{digits[:most]}..."


class Bars:
    """The progress of each thing that is being done, a bar for each."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done, total=total)


@contextlib.contextmanager
def progress_bars() -> Iterator[Bars]:
    """Give bars on stderr if that is a terminal, and nothing in a file or a pipe."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        yield Bars(progress)


@contextlib.contextmanager
def told_by_the_command() -> Iterator[None]:
    """Keep Reef's own log quiet: what it would say of damage is what the command is about to tell."""
    log = logging.getLogger("reef")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
