"""What the documents show runs, what they link to exists, and no option is left out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from reef import settings
from reef.cli._app import app
from reef.store import OPTIONS, SCHEMES

REPO = Path(__file__).resolve().parents[2]
DOCUMENTS = [*sorted(REPO.glob("*.md")), *sorted((REPO / "docs").rglob("*.md"))]

_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENTS_AT_THE_END = re.compile(r"(?:^# .*\n)+\Z", re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")


def run(source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def examples_of(document: str) -> list[str]:
    return _PYTHON.findall((REPO / document).read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_example_of_documents_runs_and_runs_again(tmp_path: Path) -> None:
    example, _, _ = examples_of("README.md")
    first = run(example, tmp_path)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == (
        "{'id': 'p1', 'price': 2.0} {'id': 'p1', 'price': 1.5}\n"
        "[{'id': 'p1', 'title': 'apple'}]\n"
        "['knife']\n"
        "[{'mean': 7.0}]\n"
    )
    assert (tmp_path / "bucket/namespaces/shop").is_dir()
    second = run(example, tmp_path)
    assert (second.returncode, second.stderr, second.stdout) == (0, "", first.stdout)


@pytest.mark.slow
def test_the_example_of_keys_and_values_runs_and_runs_again(tmp_path: Path) -> None:
    _, example, _ = examples_of("README.md")
    first = run(example, tmp_path)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == "{b'user/1': b'logged out', b'user/2': b'new'} b'logged in'\n"
    assert (tmp_path / "bucket/namespaces/sessions").is_dir()
    second = run(example, tmp_path)
    assert (second.returncode, second.stderr) == (0, "")
    assert second.stdout == first.stdout


@pytest.mark.slow
def test_the_example_of_sqlite_runs_and_runs_again(tmp_path: Path) -> None:
    _, _, example = examples_of("README.md")
    for _ in range(2):
        done = run(example, tmp_path)
        assert (done.returncode, done.stderr, done.stdout) == (0, "", "[(1,)]\n")
    assert (tmp_path / "bucket/namespaces/app.db@dev").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_the_examples_of_documents_print_what_they_say(tmp_path: Path, number: int) -> None:
    examples = examples_of("docs/documents.md")
    assert len(examples) == 6
    done = run(examples[number], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    said = _COMMENTS_AT_THE_END.search(examples[number])
    assert said is not None
    assert said[0] == "".join(f"# {line}\n" for line in done.stdout.splitlines())


@pytest.mark.slow
def test_the_example_of_branches_prints_what_it_says(tmp_path: Path) -> None:
    (example,) = examples_of("docs/branches.md")
    done = run(example, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    said = _COMMENTS_AT_THE_END.search(example)
    assert said is not None
    assert said[0] == "".join(f"# {line}\n" for line in done.stdout.splitlines())


@pytest.mark.slow
def test_the_tour_of_documents_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", REPO / "examples/documents.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(re.findall(r"^\d+\. ", done.stdout, re.MULTILINE)) == 8
    assert list(tmp_path.iterdir()) == []  # its bucket was a temporary one


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_the_examples_of_keys_and_values_run(tmp_path: Path, number: int) -> None:
    examples = _PYTHON.findall((REPO / "docs/kv.md").read_text(encoding="utf-8"))
    assert len(examples) == 3
    done = run(examples[number], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_example_of_the_wrappers_prints_what_it_says(tmp_path: Path) -> None:
    (example,) = _PYTHON.findall((REPO / "docs/stores.md").read_text(encoding="utf-8"))
    done = run(example, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == example.splitlines()[-1].removeprefix("# ") + "\n"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPO)))
def test_links_lead_somewhere(document: Path) -> None:
    for target, heading in _LINK.findall(document.read_text(encoding="utf-8")):
        found = (document.parent / target) if target else document
        assert found.exists(), f"{document.name} links to {target}"
        if heading:
            text = found.read_text(encoding="utf-8")
            titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
            assert heading in anchors, f"{document.name} links to {target}#{heading}"


def test_every_option_is_documented() -> None:
    text = (REPO / "docs/stores.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE))
    wanted = {option for scheme in SCHEMES for option in OPTIONS[scheme]}
    assert wanted <= rows
    assert all(f"`{scheme}://" in text for scheme in SCHEMES)


def test_every_setting_is_documented_with_its_default() -> None:
    text = (REPO / "docs/settings.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", text, re.MULTILINE))
    assert rows.keys() == vars(settings.Settings()).keys()
    said = {name: "" if text == "empty" else text.strip("`") for name, text in rows.items()}
    assert settings.load_settings(said, {}) == settings.Settings()


def test_every_command_is_documented() -> None:
    text = (REPO / "docs/cli.md").read_text(encoding="utf-8")
    names = [command.name for command in app.registered_commands]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        inner = group.typer_instance.registered_commands
        names += [f"{group.name or group.typer_instance.info.name} {c.name}" for c in inner]
    assert len(names) > 10
    missing = [name for name in names if not re.search(rf"reef {name}\b", text)]
    assert missing == []
