"""Commands that cannot: usage, what is not there, output that nobody takes, and being interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.support.commands import Run
from tests.support.doctor.damaged_buckets import NAMESPACE, Bucket
from tests.support.terminal import run_on_terminal

pytestmark = pytest.mark.usefixtures("no_settings")

USAGE = [
    ("verify", [], "neither of NAMESPACE and --all given"),
    ("verify", [NAMESPACE, "--all"], "both of NAMESPACE and --all given"),
    ("stats", [], "NAMESPACE and --all"),
    ("gc", [], "NAMESPACE and --all"),
    ("verify", ["../x"], "namespace = '../x'"),
    ("repair", [], "Missing argument 'NAMESPACE'"),
    ("repair", ["a/b"], "namespace = 'a/b'"),
    ("inspect", [], "Missing argument 'NAMESPACE'"),
    ("inspect", [NAMESPACE, "frob"], "WHAT = 'frob'"),
    ("inspect", [NAMESPACE, "log"], "WHAT = 'log'"),
    ("inspect", [NAMESPACE, "log", "0"], "SLOT = '0'"),
    ("inspect", [NAMESPACE, "log", "x"], "SLOT = 'x'"),
    ("inspect", [NAMESPACE, "manifest", "-1"], "No such option"),
    ("inspect", [NAMESPACE, "manifest", "0"], "GENERATION = '0'"),
    ("inspect", [NAMESPACE, "segment", "../../x"], "object key"),
    ("inspect", [NAMESPACE, "log", "1", "--limit", "-1"], "--limit"),
    ("snapshot", [], "No such command"),
    ("snapshot create", [NAMESPACE, "--ttl", "soon"], "ttl = 'soon'"),
    ("snapshot create", [NAMESPACE, "--ttl", "0"], "ttl = '0'"),
    ("kv get", [NAMESPACE], "Missing argument 'KEY'"),
    ("kv get", [NAMESPACE, "zz", "--hex"], "KEY = 'zz'"),
    ("kv get", [NAMESPACE, "a", "--base64"], "KEY = 'a'"),
    ("kv get", [NAMESPACE, "aa", "--base64", "--hex"], "--hex and --base64"),
    ("kv get", [NAMESPACE, "a", "--lsn", "-1"], "--lsn"),
    ("kv get", [NAMESPACE, "a", "--lsn", "1", "--generation", "1"], "one of lsn, generation"),
    ("kv get", [NAMESPACE, "k" * 5000], "expected at most 4096"),
    ("kv put", [NAMESPACE, "a"], "VALUE and --file: neither given"),
    ("kv put", [NAMESPACE, "a", "b", "--file", "c"], "VALUE and --file: both given"),
    ("kv put", [NAMESPACE, "a", "--file", "/no/such/file"], "cannot be read"),
    ("kv scan", [NAMESPACE, "--limit", "0"], "--limit"),
    # Writing fences others: so these must be refused before the namespace is opened.
    ("kv put", [NAMESPACE, "a", "b", "--idempotency-key", ""], "--idempotency-key = ''"),
    (
        "kv put",
        [NAMESPACE, "a", "b", "--idempotency-key", "k" * 513],
        "has 513 bytes: expected 1 to 512",
    ),
    ("kv put", [NAMESPACE, "k" * 4097, "b"], "expected at most 4096"),
    ("kv put", [NAMESPACE, "0", "00", "--hex"], "KEY = '0'"),
    ("kv put", [NAMESPACE, "00", "0", "--hex"], "VALUE = '0'"),
    ("kv put", [NAMESPACE, "a", "-", "--file", "c"], "VALUE and --file: both given"),
    ("kv put", ["a/b", "a", "b"], "namespace = 'a/b'"),
    ("kv delete", [NAMESPACE, "a", "--idempotency-key", "é" * 257], "has 514 bytes"),
    ("kv delete", [NAMESPACE, "k" * 4097], "expected at most 4096"),
    ("kv delete", ["a/b", "a"], "namespace = 'a/b'"),
    ("snapshot create", [NAMESPACE, "--id", "a/b"], "'a/b'"),
]


@pytest.mark.parametrize(("command", "arguments", "says"), USAGE)
def test_usage_errors_are_one_line_and_exit_code_1(
    bucket: Bucket, run: Run, command: str, arguments: list[str], says: str
) -> None:
    before = bucket.everything()
    generation = bucket.manifest.generation
    code, out, err = run(command, *arguments)
    assert (code, out) == (1, "")
    assert bucket.manifest.generation == generation
    assert says in err
    assert err.startswith("reef: ")
    assert err.count("\n") == 1
    assert bucket.everything() == before


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("stats", ["other"]),
        ("inspect", ["other"]),
        ("inspect", [NAMESPACE, "manifest", "77"]),
        ("inspect", [NAMESPACE, "log", "77"]),
        ("verify", ["other"]),
        ("repair", ["other", "--apply"]),
        ("gc", ["other", "--apply"]),
        ("snapshot create", ["other"]),
        ("snapshot list", ["other"]),
        ("snapshot renew", [NAMESPACE, "none-such"]),
        ("snapshot release", [NAMESPACE, "none-such"]),
        ("snapshot release", ["other", "none-such"]),
        ("kv get", ["other", "key"]),
        ("kv scan", ["other"]),
        ("kv get", [NAMESPACE, "none-such"]),
        ("kv get", [NAMESPACE, "a", "--snapshot", "none-such"]),
        ("kv get", [NAMESPACE, "a", "--generation", "77"]),
    ],
)
def test_what_is_not_there_is_one_line_and_exit_code_2(
    bucket: Bucket, run: Run, command: str, arguments: list[str]
) -> None:
    before = bucket.everything()
    code, out, err = run(command, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("reef: ")
    assert err.count("\n") == 1
    assert bucket.everything() == before


@pytest.mark.slow
def test_no_progress_is_shown_in_a_pipe(bucket: Bucket) -> None:
    for command in ("verify", "repair", "gc"):
        done = subprocess.run(
            [sys.executable, "-m", "reef", command, bucket.url, NAMESPACE],
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
def test_progress_is_shown_on_a_terminal(bucket: Bucket) -> None:
    command = [sys.executable, "-m", "reef", "verify", bucket.url, NAMESPACE, "--json"]
    ran = run_on_terminal(command)
    assert ran.code == 0
    assert json.loads(ran.out)["namespaces"][0]["ok"]
    assert b"segments" in ran.shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", NAMESPACE],
        ["verify", NAMESPACE, "--json"],
        ["gc", "--all"],
        ["repair", NAMESPACE],
        ["stats", NAMESPACE],
        ["inspect", NAMESPACE, "manifest"],
        ["snapshot list", NAMESPACE],
        ["kv scan", NAMESPACE],
        ["kv put", "fresh", "a", "1"],
    ],
)
def test_output_that_cannot_be_written(bucket: Bucket, arguments: list[str]) -> None:
    """A full disk is one line and a code of its own; a pipe that nobody reads is no error."""
    name, *rest = arguments
    line = [sys.executable, "-m", "reef", *name.split(), bucket.url, *rest]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 3
    assert done.stderr == b"reef: stdout could not be written: No space left on device\n"
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(line, stdout=theirs, stderr=subprocess.PIPE, check=False)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, b"")


def scan_much(bucket: Bucket, **how: Any) -> subprocess.Popen[bytes]:
    """Return a scan that has shown its first line and cannot end: a pipe holds less than there is."""
    with bucket.open() as db, db.kv("large") as kv:
        kv.write({b"%06d" % n: b"x" * 100 for n in range(20_000)})
    process = subprocess.Popen(
        [sys.executable, "-m", "reef", "kv", "scan", bucket.url, "large"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **how,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"000000\t")
    return process


def test_ctrl_c_in_the_middle_of_a_scan(bucket: Bucket) -> None:
    with scan_much(
        bucket, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    ) as process:
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.read() == b"reef: interrupted\n"
    assert process.returncode == 130


def test_a_reader_that_has_seen_enough_is_no_error(bucket: Bucket) -> None:
    process = scan_much(bucket)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0
