"""What the document on SQLite shows runs, and prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
EXAMPLES = re.findall(
    r"^```python\n(.*?)^```$", (REPO / "docs/sqlite.md").read_text(), re.MULTILINE | re.DOTALL
)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=["apsw", "sqlite3"])
def test_the_example_runs_and_runs_again(example: str, tmp_path: Path) -> None:
    said = "".join(
        line.removeprefix("# ") + "\n"
        for line in re.findall(r"(?:^# .*\n)+\Z", example, re.MULTILINE)[0].splitlines()
    )
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-W", "error", "-c", example],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, said, "")


def test_the_tour_runs() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(REPO / "examples/sqlite.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "and yet: {'apple': 2, 'knife': 2}" in ran.stdout
