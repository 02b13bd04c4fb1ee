"""The face `pages`: pages of one size by number, each at every version that is kept.

Pages              an open page store: append_wal, get_page, truncate, ...; WalRecord is a page to write
PageView           the same reads at one version; PageSnapshot holds one
face_of_pages      what the face asks of a namespace of pages of some size
EXTENT_KEY         the key under which the number of pages is stored
"""

from reef.pages._page_rows import EXTENT_KEY, face_of_pages
from reef.pages._page_views import PageSnapshot, PageView
from reef.pages._pages import Pages, WalRecord

__all__ = ["EXTENT_KEY", "PageSnapshot", "PageView", "Pages", "WalRecord", "face_of_pages"]
