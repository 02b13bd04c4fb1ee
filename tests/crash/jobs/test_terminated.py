"""Commands that get SIGTERM while they work: no intent stands, nothing is lost, and the exit code says so."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

import reef
from reef.jobs import IndexOptions, index, standing_intents
from tests.support.crash.terminated import terminated

NAMES = ["a", "b", "c"]
COMMANDS = {
    "index": ["--all", "--in-process"],
    "compact": ["--all", "--in-process", "--full"],
    "rebuild": ["--all", "--in-process"],
    "worker": ["--in-process", "--min-slots", "1", "--min-input-files", "2", "--interval", "1h"],
}
MANIFEST = "put_if_absent namespaces/a/manifest"
SEGMENT = "upload namespaces/b/segments"
REQUESTS = 60
"""About how many requests a command sends here."""


def url_of(folder: Path) -> str:
    return f"file://{folder}?fsync=off"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bucket of namespaces with two segments and an unfolded log each."""
    folder = tmp_path_factory.mktemp("built") / "bucket"
    with reef.connect(url_of(folder)) as db:
        for i in range(3):
            for name in NAMES:
                with db.kv(name) as kv:
                    kv.write(puts={b"%02d" % key: b"%d %d" % (key, i) for key in range(20)})
            if i < 2:
                index(db, NAMES, options=IndexOptions())
    return folder


def contents(folder: Path) -> dict[str, dict[bytes, bytes]]:
    with reef.connect(url_of(folder)) as db:
        found = {}
        for name in NAMES:
            assert standing_intents(db.context(), name) == ()
            with db.kv(name, mode="r") as kv:
                found[name] = dict(kv.items())
    return found


def check(built: Path, folder: Path, command: str, when: str, match: str, nth: int = 1) -> int:
    """Run a command that gets SIGTERM; return its exit code."""
    shutil.copytree(built, folder / "bucket")
    arguments = [command, url_of(folder / "bucket"), *COMMANDS[command]]
    code = terminated(arguments, when, match, nth)
    assert contents(folder / "bucket") == contents(built)
    assert code is not None
    return code


@pytest.mark.parametrize(
    ("command", "when", "match"),
    [
        ("index", "before", MANIFEST),
        ("index", "after", MANIFEST),
        ("index", "after", SEGMENT),
        ("compact", "after", MANIFEST),
        ("compact", "before", SEGMENT),
        ("rebuild", "after", MANIFEST),
        ("worker", "after", MANIFEST),
        ("worker", "before", SEGMENT),
    ],
)
def test_sigterm_leaves_no_intent(
    built: Path, tmp_path: Path, command: str, when: str, match: str
) -> None:
    code = check(built, tmp_path, command, when, match)
    assert code == (0 if command == "worker" else 143)


def test_a_second_sigterm_ends_a_worker_at_once(built: Path, tmp_path: Path) -> None:
    assert check(built, tmp_path, "worker", "stuck", MANIFEST) == 143


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("command", [*COMMANDS])
def test_sigterm_at_any_request(built: Path, tmp_path: Path, command: str, seed: int) -> None:
    nth = random.Random(f"{command} {seed}").randint(1, REQUESTS)
    code = check(built, tmp_path, command, "after", "", nth)
    assert code == 0 if command == "worker" else code in (0, 143)
