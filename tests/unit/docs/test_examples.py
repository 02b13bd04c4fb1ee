"""Every Python example runs, and prints what the comment at its end says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
SPARK = REPO / "docs/pipeline.md"  # its examples belong together: tests/spark runs them
DOCUMENTS = sorted({*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md")} - {SPARK})

_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OUTPUT = re.compile(r"(?:^# .*\n)+\Z", re.MULTILINE)

EXAMPLES = {
    f"{document.relative_to(REPO)}:{number}": example
    for document in DOCUMENTS
    for number, example in enumerate(_PYTHON.findall(document.read_text(encoding="utf-8")), 1)
}
REPEATABLE = ("README.md", "docs/sqlite.md")


def run(source: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def output_of(example: str) -> str:
    comments = _OUTPUT.search(example)
    assert comments is not None, "an example ends with its output, as comments"
    return "".join(line.removeprefix("# ") + "\n" for line in comments[0].splitlines())


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_prints_what_it_says(name: str, tmp_path: Path) -> None:
    for _ in range(2 if name.startswith(REPEATABLE) else 1):
        assert run(EXAMPLES[name], tmp_path) == output_of(EXAMPLES[name])


def test_no_page_lost_its_examples() -> None:
    pages = {name.partition(":")[0] for name in EXAMPLES}
    faces = {f"docs/{face}.md" for face in ("documents", "kv", "pages", "sqlite", "branches")}
    assert {"README.md", "docs/quickstart.md", "docs/stores.md", *faces} <= pages


def test_the_readme_runs_an_example_on_its_first_screen() -> None:
    lines = (REPO / "README.md").read_text(encoding="utf-8").splitlines()
    assert "```python" in lines[:10]
    assert "```" in lines[:26]


def test_the_commands_of_the_quick_start_run(tmp_path: Path) -> None:
    commands = "".join(_SHELL.findall((REPO / "docs/quickstart.md").read_text(encoding="utf-8")))
    assert commands.count("reef ") >= 8
    scripts = str(Path(sys.executable).parent)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "apple" in done.stdout
    assert "no problems" in done.stdout


@pytest.mark.parametrize("tour", ["documents", "sqlite"])
def test_the_tour_runs(tour: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(REPO / f"examples/{tour}.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    assert list(tmp_path.iterdir()) == []  # its bucket was a temporary one
