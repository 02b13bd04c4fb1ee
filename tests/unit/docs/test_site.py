"""The site builds without a warning, and asks the network for nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(
    find_spec("mkdocs") is None, reason="the dependency group `docs` is not installed"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=REPO,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*src="(https?:[^"]*)"', text)
        loaded += re.findall(
            r'<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="(https?:[^"]*)"', text
        )
        assert loaded == [], page.name


def test_generated_pages_are_there(site: Path) -> None:
    commands = (site / "reference/commands.html").read_text(encoding="utf-8")
    assert "reef snapshot create" in commands
    assert "--min-input-files" in commands
    documents = (site / "reference/reef.documents.html").read_text(encoding="utf-8")
    assert "Documents.upsert" in documents
