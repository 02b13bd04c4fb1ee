"""What the documents say of commands and settings agrees with the code."""

from __future__ import annotations

import re
import runpy
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from reef import settings
from reef.errors import InvalidInputError

REPO = Path(__file__).resolve().parents[3]
DOCUMENTS = [*sorted(REPO.glob("*.md")), *sorted((REPO / "docs").rglob("*.md"))]
HOOKS = runpy.run_path(str(REPO / "scripts/docs_hooks.py"))

_PYTHON = re.compile(r"^```python\n.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^```(?:sh|text)?\n.*?^```$|^    .*$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_REEF = re.compile(r"(?<![\w./-])reef((?: +[a-z][a-z-]*(?:\|[a-z-]+)*)+)([^\n`]*)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def commands() -> list[tuple[str, ...]]:
    named: list[tuple[str, ...]] = HOOKS["commands"]()
    return named


def help_of(words: tuple[str, ...]) -> str:
    return str(HOOKS["help_of"](words))


def code_of(document: Path) -> list[str]:
    """Return what a document sets as code, apart from Python."""
    return _CODE.findall(_PYTHON.sub("", document.read_text(encoding="utf-8")))


def uses(document: Path) -> list[tuple[list[tuple[str, ...]], str]]:
    """Return every use of `reef` in code: the commands that it may name, and the rest of the line."""
    named = []
    for code in code_of(document):
        for words, rest in _REEF.findall(code):
            choices = [word.split("|") for word in words.split()]
            named.append(([tuple(one) for one in product(*choices)], rest))
    return named


def known_of(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the command, or group of commands, that the words begin with."""
    known = set(commands())
    groups = {command[:1] for command in known if len(command) == 2}
    if words[:2] in known:
        return words[:2]
    if words[:1] in known or (words[:1] in groups and len(words) == 1):
        return words[:1]
    return None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPO)))
def test_commands_and_options_exist(document: Path) -> None:
    for names, rest in uses(document):
        for words in names:
            command = known_of(words)
            assert command is not None, f"{document.name}: there is no reef {' '.join(words)}"
            for option in _OPTION.findall(rest):
                assert re.search(rf"(?<![\w-]){option}\b", help_of(command)), (
                    f"{document.name}: reef {' '.join(command)} has no {option}"
                )


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_help_names_no_types_of_python_and_no_ranges(words: tuple[str, ...]) -> None:
    assert re.search(r" <\w+|x[<>]|[<>]=x", help_of(words)) is None


SECTIONS = [
    section
    for document in ("docs/cli.md", "docs/pipeline.md")
    for section in re.split(
        r"^##+ ", (REPO / document).read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    if known_of((section.partition("\n")[0],))
]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.partition("\n")[0])
def test_options_in_the_section_of_a_command_exist(section: str) -> None:
    name = section.partition("\n")[0]
    helps = "".join(help_of(command) for command in commands() if command[0] == name)
    for span in re.findall(r"`(--[^`]*)`", section):
        for option in _OPTION.findall(span):
            assert re.search(rf"(?<![\w-]){option}\b", helps), f"reef {name} has no {option}"


def test_every_command_is_documented() -> None:
    used = {known_of(words) for names, _ in uses(REPO / "docs/cli.md") for words in names}
    text = (REPO / "docs/cli.md").read_text(encoding="utf-8")
    synopsis = text.partition("\n\n")[2].partition("\n\n")[0]
    assert len(commands()) > 30
    for command in commands():
        assert command in used or command[-1] in synopsis, f"reef {' '.join(command)}"
        assert all(word in synopsis for word in command), f"reef {' '.join(command)}"


def test_targets_of_make_exist() -> None:
    makefile = (REPO / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    for document in DOCUMENTS:
        for code in code_of(document):
            for target in re.findall(r"^[` ]*make ([a-z]+)", code, re.MULTILINE):
                assert target in targets, f"{document.name}: there is no make {target}"


def test_modules_that_are_run_exist() -> None:
    for document in DOCUMENTS:
        for code in code_of(document):
            for module in re.findall(r"python -m ((?:reef|bench|fuzz|tests)\b[a-z_.]*)", code):
                path = REPO / module.replace(".", "/")
                ours = (path / "__main__.py").is_file() or path.with_suffix(".py").is_file()
                assert ours, f"{document.name}: there is no python -m {module}"


def table_of_settings() -> dict[str, list[str]]:
    text = (REPO / "docs/settings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", text, re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}


def test_every_setting_is_documented_with_its_default() -> None:
    rows = table_of_settings()
    assert rows.keys() == vars(settings.Settings()).keys()
    defaults = {name: "" if row[0] == "empty" else row[0].strip("`") for name, row in rows.items()}
    assert settings.load_settings(defaults, {}) == settings.Settings()


@pytest.mark.parametrize("name", vars(settings.Settings()))
def test_the_bounds_of_a_setting_are_those_of_the_table(name: str) -> None:
    bounds = table_of_settings()[name][1]
    match = re.fullmatch(r"(\w+) to (\w+)(, or none)?", bounds)
    if match is None:
        assert (
            bounds in {"two durations", "a folder", "1 and more", "`auto` or `off`"}
            or " and " in bounds
        )
        return

    def accepts(value: Any) -> bool:
        try:
            settings.load_settings({name: value}, {})
        except InvalidInputError:
            return False
        return True

    low, high, none = match.groups()
    assert accepts(low)
    assert accepts(high)
    assert accepts("none") == (none is not None)
    assert not accepts(re.sub(r"\d+", lambda digits: str(2 * int(digits[0])), high))
    assert not accepts("-1" if low == "0" else re.sub(r"\d+", "0", low))
