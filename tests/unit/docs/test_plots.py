"""The performance page shows the plots that are there."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

REPO = Path(__file__).resolve().parents[3]
HOOKS = runpy.run_path(str(REPO / "scripts/docs_hooks.py"))


def page_with_plots(docs: Path) -> str:
    text = (REPO / "docs/performance.md").read_text(encoding="utf-8")
    return str(HOOKS["on_page_markdown"](text, None, SimpleNamespace(docs_dir=str(docs)), None))


def test_plots_take_the_place_of_the_marker(tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    for name in ("put.svg", "full-scan.svg", "notes.txt"):
        (tmp_path / "plots" / name).touch()
    page = page_with_plots(tmp_path)
    assert "![full scan](plots/full-scan.svg)\n\n![put](plots/put.svg)" in page
    assert "notes" not in page
    assert "<!--" not in page


def test_the_page_needs_no_plots(tmp_path: Path) -> None:
    page = page_with_plots(tmp_path)
    assert "](plots/" not in page
    assert "<!--" not in page
