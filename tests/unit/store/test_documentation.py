"""docs/stores.md names every scheme and option."""

from __future__ import annotations

import re
from pathlib import Path

from reef.store._url import OPTIONS, SCHEMES

REPO = Path(__file__).resolve().parents[3]


def test_every_option_is_documented() -> None:
    text = (REPO / "docs/stores.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE))
    options = {option for scheme in SCHEMES for option in OPTIONS[scheme]}
    assert options <= rows
    assert all(f"`{scheme}://" in text for scheme in SCHEMES)
