"""Where a page of a query ends: a token that the next one begins after.

It names the namespace, the version, the order and the filter, so that the pages of one query fit
together and a token of another one is refused. Attributes are in it by number: a rename does not matter.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Any

import msgspec
import pyarrow as pa

from reef.documents.filter import Filter
from reef.documents.query._row_order import Order
from reef.engine import View
from reef.errors import InvalidInputError
from reef.types import LSN_MAX

AFTER = b"reef:after"

_FORMAT = 1
_CHECK_BYTES = 4


class Page(msgspec.Struct, frozen=True, array_like=True):
    """The end of a page."""

    format: int
    life: tuple[str, int]
    """The namespace, and where its life began: what has the name later is another one."""
    lsn: int
    order: list[tuple[int, bool]]
    """The id of each attribute to order by, and whether that is from the greatest; 0 is the id."""
    filter: bytes
    """What stands for the filter."""
    position: list[Any]
    """The last row's values that it is ordered by, and its key."""

    def token(self) -> str:
        """Return it as text."""
        data = msgspec.msgpack.encode(self)
        return base64.urlsafe_b64encode(_check(data) + data).decode().rstrip("=")

    def check_life(self, life: tuple[str, int]) -> None:
        """Raise InvalidInputError if it is of another namespace, or of one of that name before."""
        if self.life != life:
            of = f"namespace {self.life[0]!r}, and this is {life[0]!r}"
            if self.life[0] == life[0]:
                of = f"an earlier namespace {life[0]!r}, which was dropped"
            raise InvalidInputError(
                f"the token in `after` belongs to {of}: begin with the first page"
            )

    def start(
        self, life: tuple[str, int], lsn: int, order: Order, filter: Filter | None
    ) -> list[Any]:
        """Return the position to begin after, if it is of this query. Raises InvalidInputError."""
        self.check_life(life)
        if self.order != order_key(order) or self.filter != filter_key(filter):
            raise InvalidInputError(
                "the token in `after` belongs to another query: give the same where and order_by as "
                "for the first page"
            )
        if self.lsn != lsn:
            raise InvalidInputError(
                f"the token in `after` belongs to version {self.lsn}, and this is version {lsn}: "
                "read all pages of a query at one version"
            )
        try:
            return order.check_position(self.position)
        except ValueError as error:
            raise _damaged_token() from error


def page_end(view: View, order: Order, filter: Filter | None, position: list[Any]) -> Page:
    """Return the end of a page whose last row stands at `position`."""
    return Page(_FORMAT, view.life, view.lsn, order_key(order), filter_key(filter), position)


def read_page(after: str | pa.Table | None) -> Page | None:
    """Return what a token, or the token of a table, says. Raises InvalidInputError."""
    if after is None:
        return None
    if isinstance(after, pa.Table):
        token = (after.schema.metadata or {}).get(AFTER)
        if token is None:
            raise InvalidInputError(
                "the table in `after` has no next page: only a result that `limit` has cut off has "
                f"{AFTER.decode()!r} in its schema's metadata"
            )
        after = token.decode()
    if isinstance(after, bytes):
        after = after.decode(errors="replace")
    if not isinstance(after, str):
        raise InvalidInputError.of("after", after, "a token, or the table of the page before")
    try:
        data = base64.b64decode(after + "=" * (-len(after) % 4), altchars=b"-_", validate=True)
        check, data = data[:_CHECK_BYTES], data[_CHECK_BYTES:]
        page = msgspec.msgpack.decode(data, type=Page)
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise _damaged_token() from error
    if check != _check(data) or page.format != _FORMAT or not 0 <= page.lsn <= LSN_MAX:
        raise _damaged_token()
    return page


def page_version(after: str | pa.Table | None, life: tuple[str, int]) -> int | None:
    """Return the version to read the next page at, or None: any. Raises InvalidInputError."""
    page = read_page(after)
    if page is None:
        return None
    page.check_life(life)
    return page.lsn


def order_key(order: Order) -> list[tuple[int, bool]]:
    """Return what tells an order from others."""
    terms = [(term.attribute.id, term.is_descending) for term in order.terms]
    return [*terms, (0, order.is_id_descending)]


def filter_key(filter: Filter | None) -> bytes:
    """Return what tells a filter from others."""
    return b"" if filter is None else hashlib.blake2b(filter.encode(), digest_size=16).digest()


def _check(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECK_BYTES).digest()


def _damaged_token() -> InvalidInputError:
    return InvalidInputError(
        "the token in `after` does not come from a query: pass it on unchanged, or pass the table"
    )
