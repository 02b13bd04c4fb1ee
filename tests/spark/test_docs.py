"""The examples of docs/pipeline.md run as they stand, one after the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_run(tmp_path: Path) -> None:
    text = (REPO / "docs/pipeline.md").read_text(encoding="utf-8")
    source = "\n".join(_PYTHON.findall(text)).replace("/tmp/reef-pipeline", f"{tmp_path}/")
    ran = subprocess.run(
        [sys.executable, "-c", source],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    totals, filtered, changes = ran.stdout.splitlines()[:3]
    assert totals.endswith("[('orders', 'done')]")
    assert (filtered, changes) == ("10", "1000")
