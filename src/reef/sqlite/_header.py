"""SQLite's database header, the first 100 bytes of a file: what Reef reads in it, and what it changes.

18, 19  in which journal mode the file is to be written and read: 1 rollback, 2 WAL
24..27  the change counter, by which connections know whether their cached pages are good
28..31  how many pages there are, if 92..95 has the same number as 24..27
40..43  the number of the schema, by which alone they know whether that has changed
"""

from __future__ import annotations

from collections.abc import Iterable

HEADER_BYTES = 100
CHANGE_COUNTER_READ = (24, 16)
"""What SQLite reads to learn whether its cached pages are still those of the file: offset and bytes."""

_MAGIC = b"SQLite format 3\0"
_PAGE_SIZE = slice(16, 18)
_JOURNAL_MODE = slice(18, 20)
_ROLLBACK, _WAL = b"\1\1", b"\2\2"
_COUNTER = slice(24, 28)
_PAGE_COUNT = slice(28, 32)
_SCHEMA = slice(40, 44)
_COUNTER_OF_PAGE_COUNT = slice(92, 96)


def is_database(first: bytes) -> bool:
    """Return whether a database begins with this page."""
    return first.startswith(_MAGIC)


def size_in_header(first: bytes) -> int:
    """Return the file size in SQLite's header; 0 if it has none."""
    if not is_database(first) or not _says_page_count(first):
        return 0
    page_size = _uint(first[_PAGE_SIZE])
    page_size = 65536 if page_size == 1 else page_size
    return page_size * _uint(first[_PAGE_COUNT])


def without_wal(first: bytes) -> bytes:
    """Return a first page in rollback mode: in WAL mode it could not be opened again."""
    return _with_field(first, _JOURNAL_MODE, _ROLLBACK) if first[_JOURNAL_MODE] == _WAL else first


def with_schema(first: bytes, number: bytes) -> bytes:
    """Return the beginning of a file with another number of the schema."""
    return _with_field(first, _SCHEMA, number)


def renumbered(first: bytes, *others: bytes) -> bytes:
    """Return a first page whose change and schema have numbers behind its own and the `others`'.

    How many pages there are goes by the number of the change: if it was of another one, as old
    SQLites leave it, none is said.
    """
    counter = _number_above(page[_COUNTER] for page in (first, *others))
    page_count = first[_PAGE_COUNT] if _says_page_count(first) else bytes(4)
    first = _with_field(first, _SCHEMA, _number_above(page[_SCHEMA] for page in (first, *others)))
    for field_at, number in (
        (_COUNTER, counter),
        (_PAGE_COUNT, page_count),
        (_COUNTER_OF_PAGE_COUNT, counter),
    ):
        first = _with_field(first, field_at, number)
    return first


def _says_page_count(first: bytes) -> bool:
    return first[_COUNTER] == first[_COUNTER_OF_PAGE_COUNT]


def _with_field(first: bytes, field_at: slice, field: bytes) -> bytes:
    return first[: field_at.start] + field + first[field_at.stop :]


def _uint(field: bytes) -> int:
    return int.from_bytes(field, "big")


def _number_above(fields: Iterable[bytes]) -> bytes:
    """Return the number behind the greatest, as SQLite keeps them."""
    return ((max(map(_uint, fields)) + 1) % 2**32).to_bytes(4, "big")
