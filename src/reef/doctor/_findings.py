"""What is told of a namespace's objects: findings, each a problem or a note."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from reef.errors import UnreadableError

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is, and how much there is."""

# So much is fetched at once at most, in so many requests.
AT_ONCE_BYTES = 32 << 20
AT_ONCE_OBJECTS = 16

_T = TypeVar("_T")


@dataclass(frozen=True)
class Finding:
    """Something worth telling of one object."""

    kind: str
    """A word for programs; `docs/cli.md` lists them."""
    key: str
    """The object."""
    text: str
    """What was found, and what follows from it."""
    is_problem: bool = True
    """Otherwise it is a note: nothing is wrong, or it was dealt with."""


def silent(what: str, done: int, total: int) -> None:
    """Tell nobody."""


def said(error: UnreadableError) -> str:
    """Return what is wrong with an object, without its key and without advice."""
    return f"{error.what} at byte {error.offset}: expected {error.expected}, got {error.got}"


def portions(items: Sequence[_T], size: Callable[[_T], int]) -> Iterator[Sequence[_T]]:
    """Yield `items` in runs to fetch at once, bounded in number and, but for single ones, in bytes."""
    first, held = 0, 0
    for at, item in enumerate(items):
        if at > first and (at - first >= AT_ONCE_OBJECTS or held + size(item) > AT_ONCE_BYTES):
            yield items[first:at]
            first, held = at, 0
        held += size(item)
    if first < len(items):
        yield items[first:]


def ranges_text(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text: "3, 5 to 9"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in runs)
