"""Every relative link and anchor of the documents leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
DOCUMENTS = [*sorted(REPO.glob("*.md")), *sorted((REPO / "docs").rglob("*.md"))]

_CODE = re.compile(r"^```.*?^```$|^    .*$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
_TITLE = re.compile(r"^#+ (.+)$", re.MULTILINE)


def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def anchors_of(document: Path) -> set[str]:
    """Return the anchors that GitHub and the site give to the titles of a document."""
    text = re.sub(r"^```.*?^```$", "", text_of(document), flags=re.MULTILINE | re.DOTALL)
    return {
        re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-")
        for title in _TITLE.findall(text)
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPO)))
def test_links_lead_somewhere(document: Path) -> None:
    for target, anchor in _LINK.findall(_CODE.sub("", text_of(document))):
        linked = (document.parent / target).resolve() if target else document
        assert linked.exists(), f"{document.name} links to {target}, which does not exist"
        if anchor:
            assert anchor in anchors_of(linked), f"{document.name} links to {target}#{anchor}"


def test_there_are_links_to_check() -> None:
    links = [link for document in DOCUMENTS for link in _LINK.findall(text_of(document))]
    assert len(links) > 80


def test_pages_of_the_site_link_to_pages_of_the_site() -> None:
    """A link out of docs/ works in the repository, and is broken on the site."""
    docs = REPO / "docs"
    for document in sorted(docs.rglob("*.md")):
        for target, _ in _LINK.findall(_CODE.sub("", text_of(document))):
            linked = (document.parent / target).resolve()
            assert linked.is_relative_to(docs), f"{document.name} links to {target}"
            assert not target or linked.suffix == ".md", f"{document.name} links to a folder"
