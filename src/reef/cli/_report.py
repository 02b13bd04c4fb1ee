"""What a command says: text and tables for people, JSON for programs, progress on a terminal.

A command returns a `Report`. Whether its text or its JSON is printed, the option --json decides.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from reef.cli import PROBLEM, visible

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from reef.engine import Restored

SHOWN_MAX = 50
FILE_WIDTH = 200
_STATES: dict[str, dict[bool | None, str]] = {
    "damaged": {None: "not read (--deep)", False: "whole", True: "DAMAGED"},
    "is_whole": {True: "whole", False: "DAMAGED"},
}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True)
class Table:
    """A table; of a very long one with a title, the end is shown, and how much was left out."""

    columns: Sequence[str]
    rows: Iterable[Sequence[object]]
    title: str = ""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], title: str = "") -> Table:
        """Return a table of what JSON has; columns that are empty in all rows are left out."""
        names = [
            name
            for name in (rows[0] if rows else ())
            if name in _STATES or any(row.get(name) not in (None, "", []) for row in rows)
        ]
        cells = ([value_text(name, row.get(name)) for name in names] for row in rows)
        return cls([label_of(name) for name in names], cells, title)

    def __str__(self) -> str:
        listed = list(self.rows)
        if not self.columns:
            return f"{self.title}: {len(listed)}"
        left = max(0, len(listed) - SHOWN_MAX)
        more = f", the first {left} not shown (--json shows all)" if left else ""
        title = f"{self.title}: {len(listed)}{more}" if self.title else None
        return drawn(self.columns, listed[left:], title).removesuffix("\n")


Part: TypeAlias = str | Table | Mapping[str, Any]
"""A line, a table, or facts by name."""


@dataclass(frozen=True)
class Report:
    """What a command found or did: `data` as JSON, or else `parts` as text."""

    data: object
    parts: Iterable[Part]
    is_problem: bool = False

    def print(self, as_json: bool) -> None:
        """Print it. Ends the command with exit code 2 if it is a problem."""
        if as_json:
            print_json(self.data)
        else:
            for part in self.parts:
                print(visible(_facts(part)) if isinstance(part, Mapping) else _printed(part))
        if self.is_problem:
            raise typer.Exit(PROBLEM)


def _printed(part: str | Table) -> str:
    return visible(part) if isinstance(part, str) else str(part)  # a table's frame is not plain


def print_json(report: object) -> None:
    """Print one JSON value."""
    print(json.dumps(report, indent=2))


def drawn(
    columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None
) -> str:
    """Return a table as text, as wide as the terminal."""
    from rich.console import Console
    from rich.table import Table as Drawing
    from rich.text import Text

    drawing = Drawing(title=title and Text(visible(title)), title_justify="left")
    for column in columns:
        drawing.add_column(Text(visible(column)), overflow="fold")
    for row in rows:
        drawing.add_row(*(cell if isinstance(cell, Text) else Text(_cell(cell)) for cell in row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH  # nobody sees it fold
    # Left to the console, a pipe that nobody reads would end the process its way.
    sys.stdout.flush()
    with console.capture() as text:
        console.print(drawing)
    return text.get()


def _cell(value: object) -> str:
    return "" if value is None else visible(str(value))


def _facts(facts: Mapping[str, object]) -> str:
    width = max(map(len, facts), default=0)
    return "\n".join(
        f"{name:<{width}}  {'-' if value is None else value}" for name, value in facts.items()
    )


def label_of(name: str) -> str:
    """Return the name of a value in JSON as people read it."""
    return f"{name.removesuffix('_us')} (UTC)" if name.endswith("_us") else name


def value_text(name: str, value: Any) -> object:
    """Return a value as people read it, by its name in JSON."""
    if name in _STATES:
        return _STATES[name][value]
    if isinstance(value, dict | list | bool):
        return "none" if value == [] else json.dumps(value, ensure_ascii=False)
    if isinstance(value, int) and name.endswith("_us"):
        return time_text(value or None)
    is_size = isinstance(value, int) and (name == "size" or name.startswith("bytes"))
    return size_text(value) if is_size else value


def restored_report(restored: Restored) -> Report:
    """Return the report of a version that was restored."""
    if restored.lsn == restored.restored_lsn or not (restored.written or restored.deleted):
        text = f"nothing to restore: nothing was written since LSN {restored.restored_lsn}"
    else:
        text = (
            f"restored LSN {restored.restored_lsn} as LSN {restored.lsn}: {restored.written} "
            f"written, {restored.deleted} deleted"
        )
    return Report(restored._asdict(), [text])


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

    @property
    def are_shown(self) -> bool:
        """Whether stderr is a terminal."""
        return not self._progress.disable

    def __call__(self, what: str, done: int, total: int | None, about: str | None = None) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total, about="")
        text = f"{done}/{total}" if about is None else about
        self._progress.update(self._tasks[what], completed=done, total=total, about=text)


@contextlib.contextmanager
def progress_bars() -> Iterator[Bars]:
    """Give bars on stderr if that is a terminal, and nothing in a file or a pipe."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[about]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        yield Bars(progress)


@contextlib.contextmanager
def reef_log_silenced() -> Iterator[None]:
    """Silence Reef's own log: the command itself reports the damage that it would log."""
    log = logging.getLogger("reef")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
