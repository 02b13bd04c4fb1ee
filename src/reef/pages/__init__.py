"""The face `pages`: pages of one size by number, each at every version that is kept."""

from reef.pages._pages import Pages, WalRecord
from reef.pages._rows import EXTENT_KEY
from reef.pages._views import PageSnapshot, PageView

__all__ = ["EXTENT_KEY", "PageSnapshot", "PageView", "Pages", "WalRecord"]
