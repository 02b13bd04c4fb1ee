"""Lines fit, and phrases that make a reader stop stay out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
DOCUMENTS = [*sorted(REPO.glob("*.md")), *sorted((REPO / "docs").rglob("*.md"))]
LINE_MAX = 100

_CODE = re.compile(r"^```.*?^```$|^    .*$|`[^`]*`", re.MULTILINE | re.DOTALL)
_LONG = ("|", "    ", "<")  # tables and code cannot be wrapped
REFUSED = (
    "whoever",
    "whomever",
    "seen to",
    "held against",
    "of before",
    "of now",
    "as it was told",
    "is told",
    "are told",
    "was told",
    "mended",
    "on its way",
    "on the way",
)


def prose_of(document: Path) -> str:
    """Return a document without its code."""
    return _CODE.sub("", document.read_text(encoding="utf-8"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPO)))
def test_lines_fit(document: Path) -> None:
    is_code = False
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        is_code ^= line.startswith("```")
        is_free = is_code or line.startswith(_LONG)
        assert is_free or len(line) <= LINE_MAX, f"{document.name}:{number} has {len(line)} columns"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPO)))
def test_phrases_that_stop_a_reader_stay_out(document: Path) -> None:
    prose = " ".join(prose_of(document).lower().split())
    assert [phrase for phrase in REFUSED if re.search(rf"\b{phrase}\b", prose)] == []
