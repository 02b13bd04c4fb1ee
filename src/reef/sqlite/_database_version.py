"""What a transaction wrote, and what one reads: whole commits, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from reef.pages import PageView


class TransactionPages(NamedTuple):
    """The pages that one transaction changed, and how many there are after it."""

    pages: Mapping[int, bytes]
    n_pages: int


@dataclass(eq=False, slots=True)
class DatabaseVersion:
    """A state of the database, which does not change any more."""

    serial: int
    """Equal for the same content, durable or not."""
    lsn: int
    n_pages_durable: int
    zeros: bytes
    """An empty page: how large they are is of a version, for the name may be another database's later."""
    view: PageView | None = None
    """Its durable part; taken at once, for the same reason."""
    behind: tuple[TransactionPages, ...] = ()
    """Commits on top of `lsn` that were acknowledged and are not durable yet, oldest first."""
    breaks: int = 0
    """How often a served version was lost and not continued."""
    page_size: int = field(init=False)
    n_pages: int = field(init=False)
    size: int | None = field(init=False, default=None)
    """In bytes, once it was computed."""

    def __post_init__(self) -> None:
        self.page_size = len(self.zeros)
        self.n_pages = self.behind[-1].n_pages if self.behind else self.n_pages_durable


def merged_transactions(
    commits: Iterable[TransactionPages], n_pages_before: int, zeros: bytes
) -> TransactionPages:
    """Return one commit that does what `commits` do one after the other.

    `n_pages_before` is how many pages there were before them. A page that was cut off and grown over
    again is empty, and is written as that.
    """
    pages: dict[int, bytes] = {}
    n_pages = least = n_pages_before
    for commit in commits:
        if commit.n_pages < n_pages:
            pages = {one: data for one, data in pages.items() if one < commit.n_pages}
        pages.update(commit.pages)
        n_pages = commit.n_pages
        least = min(least, n_pages)
    for page_id in range(least, min(n_pages_before, n_pages)):
        pages.setdefault(page_id, zeros)
    return TransactionPages(pages, n_pages)
