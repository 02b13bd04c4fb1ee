"""What a transaction wrote, and what one reads: whole commits, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from reef.pages import PageView


class TransactionPages(NamedTuple):
    """The pages that one transaction changed, and how many there are after it."""

    pages: Mapping[int, bytes]
    n_pages: int


class DatabaseVersion:
    """A state of the database, which does not change any more."""

    __slots__ = (
        "behind",
        "breaks",
        "lsn",
        "n_pages",
        "n_pages_durable",
        "page_size",
        "serial",
        "size",
        "view",
        "zeros",
    )

    def __init__(
        self,
        serial: int,
        lsn: int,
        n_pages_durable: int,
        zeros: bytes,
        view: PageView | None = None,
        behind: tuple[TransactionPages, ...] = (),
        breaks: int = 0,
    ) -> None:
        self.breaks = breaks
        """How often what was served before was no part of what came after."""
        self.serial = serial
        """The same for what is the same, durable by now or not."""
        self.lsn = lsn
        self.n_pages_durable = n_pages_durable
        self.zeros = zeros
        """An empty page: how large they are is of a version, for the name may be another database's later."""
        self.page_size = len(zeros)
        self.behind = behind
        """Commits on top of `lsn` that were acknowledged and are not durable yet, oldest first."""
        self.n_pages = behind[-1].n_pages if behind else n_pages_durable
        self.size: int | None = None
        """In bytes, once somebody has asked."""
        self.view = view
        """What is durable of it; taken at once, for the same reason."""


def merged(
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
