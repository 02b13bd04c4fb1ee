"""A bounded run of every fuzz target; `make fuzz` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.__main__ import NAMES, fuzz


@pytest.mark.parametrize("name", NAMES)
def test_a_bounded_run_finds_nothing(name: str, tmp_path: Path) -> None:
    assert fuzz(name, tmp_path / "corpus", ["-runs=5000"], seed=1) >= 5000
