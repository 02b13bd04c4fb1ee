"""Try an installed Reef in an empty folder: documents, keys and values, the command line.

python scripts/smoke.py VERSION
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import reef

REPO = Path(__file__).resolve().parent.parent


def main(expected: str) -> None:
    assert not Path(reef.__file__).is_relative_to(REPO / "src"), "this is the source, not a package"
    assert reef.__version__ == version("reefdb") == expected
    with tempfile.TemporaryDirectory() as folder:
        url = Path(folder).as_uri()
        with reef.connect(url) as db:
            with db.namespace("shop") as ns:
                ns.upsert([{"id": "a", "price": 1.5, "vector": [1.0, 0.0]}, {"id": "b"}])
                assert ns.query(where="price < 2", columns=["price"])["price"].to_pylist() == [1.5]
                assert ns.query(vector=[0.9, 0.1], limit=1)["id"].to_pylist() == ["a"]
                assert ns.sql("select count(*) as n from docs").to_pylist() == [{"n": 2}]
            with db.kv("sessions") as kv:
                kv.put(b"user", b"here")
        with reef.connect(url) as db, db.kv("sessions", mode="r") as kv:
            assert kv.get(b"user") == b"here"
        assert run("--version") == f"reef {expected}\n"
        assert "1.5" in run("docs", "get", url, "shop", "a")


def run(*arguments: str) -> str:
    """Return what the installed command prints."""
    command = Path(sys.executable).with_name("reef")
    return subprocess.run([command, *arguments], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(sys.argv[1])
