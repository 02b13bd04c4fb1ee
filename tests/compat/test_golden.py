"""Bytes that format version 1 wrote are read, and mean what they meant."""

from __future__ import annotations

import json

import pytest

from tests.compat import golden


@pytest.mark.parametrize("name", sorted(golden.files()))
def test_golden_files_are_read(name: str) -> None:
    path = golden.FOLDER / name
    expected = json.loads((golden.FOLDER / f"{name}.expected").read_text())
    assert golden.read(path) == expected


def test_every_golden_file_is_tested() -> None:
    found = {path.name for path in golden.FOLDER.iterdir() if path.suffix != ".expected"}
    assert found == set(golden.files())


@pytest.mark.parametrize("name", ["manifest.manifest.json", "window.dedup", "log-fence.wal"])
def test_what_holds_no_arrow_is_written_byte_for_byte_alike(name: str) -> None:
    """Arrow's own bytes may change with its version; what Reef writes itself must not."""
    assert golden.files()[name] == (golden.FOLDER / name).read_bytes()
