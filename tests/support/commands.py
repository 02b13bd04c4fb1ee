"""Commands run in this process, by what they return and print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from reef import cli

Run = Callable[..., tuple[int, str, str]]
RunJson = Callable[..., tuple[int, Any]]


def runner(url: str, capture: pytest.CaptureFixture[bytes], *group: str) -> Run:
    """Return what runs a command on a bucket; that returns its code, stdout and stderr."""

    def call(command: str, *arguments: str) -> tuple[int, str, str]:
        capture.readouterr()
        code = cli.run([*group, *command.split(), url, *arguments])
        sys.stdout.flush()
        out, err = capture.readouterr()
        return code, out.decode(), err.decode()

    return call


def json_runner(run: Run) -> RunJson:
    """Return what runs a command with --json, which must print one JSON value and nothing else."""

    def call(command: str, *arguments: str) -> tuple[int, Any]:
        code, out, err = run(command, *arguments, "--json")
        assert err == ""
        return code, json.loads(out)

    return call
