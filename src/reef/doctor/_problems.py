"""What verify and repair report about a namespace's objects: problems and notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from reef.errors import UnreadableError

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the name of a stage, how much of it is done, and how much there is."""

# The most to fetch at once, in bytes and in requests.
AT_ONCE_BYTES = 32 << 20
AT_ONCE_OBJECTS = 16

_RANGES_SHOWN_MAX = 100

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class ProblemOrNote:
    """A problem with one object, or a note about it."""

    kind: str
    """A word for programs; `docs/cli.md` lists them."""
    key: str
    """The object."""
    text: str
    """A finding, and its consequence."""
    is_problem: bool = True
    """False for a note: nothing is wrong, or repair has dealt with it."""


def no_progress(stage: str, done: int, total: int) -> None:
    """Report no progress."""


def describe(error: UnreadableError) -> str:
    """Return what is wrong with an object, without its key and without advice."""
    return f"{error.what} at byte {error.offset}: expected {error.expected}, got {error.got}"


def cut_to_fetch(items: Sequence[_Item], size: Callable[[_Item], int]) -> Iterator[Sequence[_Item]]:
    """Cut `items` into what to fetch at once; only a single large item exceeds the bytes."""
    first, nbytes = 0, 0
    for at, item in enumerate(items):
        if at > first and (at - first >= AT_ONCE_OBJECTS or nbytes + size(item) > AT_ONCE_BYTES):
            yield items[first:at]
            first, nbytes = at, 0
        nbytes += size(item)
    if first < len(items):
        yield items[first:]


def ranges_text(numbers: Iterable[int | range]) -> str:
    """Return ascending numbers, or ranges of them, as text: "3, 5 to 9"."""
    ranges: list[range] = []
    for one in numbers:
        some = one if isinstance(one, range) else range(one, one + 1)
        if ranges and some.start == ranges[-1].stop:
            ranges[-1] = range(ranges[-1].start, some.stop)
        else:
            ranges.append(some)
    texts = [str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in ranges[:_RANGES_SHOWN_MAX]]
    more = len(ranges) - len(texts)
    return ", ".join(texts) + (f" and {more} more ranges" if more else "")
