"""The face `pages`: pages of one size by number, each at every version that is kept.

Pages              an open page store: append_wal, get_page, truncate, ...; WalRecord is a page to write
PageView           the same reads at one version; PageSnapshot holds one
EXTENT_KEY         the key under which the number of pages is stored
"""

from reef.pages._page_rows import EXTENT_KEY
from reef.pages._page_views import PageSnapshot, PageView
from reef.pages._pages import Pages, WalRecord

__all__ = ["EXTENT_KEY", "PageSnapshot", "PageView", "Pages", "WalRecord"]
