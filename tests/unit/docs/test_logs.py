"""The loggers, their levels and their messages are those that the documents list."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
SOURCE = REPO / "src/reef"
DOCUMENT = REPO / "docs/how-to/operate.md"

_ROW = re.compile(r"^\| `(reef\.\w+)` \| (\w+) \| (.+) \|$", re.MULTILINE)
_LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
_MADE = "logging.getLogger("
_VALUE = re.compile(r"%(?:\.\d+)?[a-z]")


def logged(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield logger, level and message of each call in a module."""
    loggers: dict[str, str] = {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith(_MADE):
            loggers[ast.unparse(node.targets[0])] = ast.literal_eval(
                ast.unparse(node.value)[len(_MADE) : -1]
            )
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            logger = loggers.get(ast.unparse(node.func.value))
            if logger is not None and node.func.attr in _LEVELS:
                yield logger, node.func.attr, _VALUE.sub("...", ast.literal_eval(node.args[0]))


def test_the_document_lists_every_message() -> None:
    listed = _ROW.findall(DOCUMENT.read_text(encoding="utf-8"))
    found = {one for path in SOURCE.rglob("*.py") for one in logged(path)}
    assert listed == sorted(listed, key=lambda row: row[:2]), "in order of loggers and levels"
    assert set(listed) == found


def test_a_package_logs_under_its_own_name() -> None:
    for path in SOURCE.rglob("*.py"):
        package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        assert {logger for logger, _, _ in logged(path)} <= {f"reef.{package}"}, path


def test_nothing_is_printed_unless_the_program_configures_it() -> None:
    code = "import logging, reef; logging.getLogger('reef.engine').error('a secret')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (ran.stdout, ran.stderr) == (b"", b"")


def test_the_command_line_prints_warnings() -> None:
    code = (
        "import logging, reef.cli as cli\n"
        "cli.run = lambda _: [logging.getLogger('reef.jobs').warning('careful'),\n"
        "                     logging.getLogger('reef.jobs').info('all is well')] and 0\n"
        "cli.main([])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (ran.stdout, ran.stderr) == (b"", b"careful\n")
