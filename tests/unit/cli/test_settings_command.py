"""`reef settings`: what a namespace keeps, shown and changed from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import reef
from reef import cli

pytestmark = pytest.mark.usefixtures("no_settings")


def test_they_are_shown_and_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path}?fsync=off"
    with reef.connect(url) as db:
        db.kv("ns").close()
    assert cli.run(["settings", url, "ns"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "gc_grace = 900s",
        "pitr_window = none",
        "max_parallel_writes = 1",
    ]
    changes = ["--set", "gc_grace=1h", "--set", "pitr_window=7d"]
    assert cli.run(["settings", url, "ns", *changes, "--json"]) == 0
    kept = {"gc_grace": 3600.0, "pitr_window": 604800.0, "max_parallel_writes": 1}
    assert json.loads(capsys.readouterr().out) == {"namespace": "ns", "settings": kept}
    assert cli.run(["stats", url, "ns", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["namespaces"][0]["settings"] == kept


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("gc_grace", "expected NAME=VALUE"),
        ("max_parallel_writes=4", "REEF_MAX_PARALLEL_WRITES=4"),
        ("gc_grase=1h", "did you mean gc_grace?"),
    ],
)
def test_what_cannot_be_changed_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, message: str
) -> None:
    url = f"file://{tmp_path}?fsync=off"
    with reef.connect(url) as db:
        db.kv("ns").close()
    assert cli.run(["settings", url, "ns", "--set", change]) == 1
    assert message in capsys.readouterr().err


def test_a_namespace_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path}?fsync=off"
    with reef.connect(url) as db:
        db.kv("ns").close()
    for more in ([], ["--set", "gc_grace=1h"]):
        assert cli.run(["settings", url, "other", *more]) == 2
        assert "there is no namespace 'other'" in capsys.readouterr().err
