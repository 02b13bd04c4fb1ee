"""The command line: exit codes, one clear line for every error, and no credentials in any of them."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.main import get_command

import reef
from reef import cli, errors
from reef.cli._app import app
from reef.cli._report import Report, Table
from reef.cli.arguments import Scope
from reef.errors import AccessDeniedError, InvalidInputError, NotFoundError, UnavailableError
from tests.support.waiting import DEADLINE_SECONDS, until

pytestmark = pytest.mark.usefixtures("no_settings")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "reef", *arguments]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"reef {reef.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands_and_the_exit_codes(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 0
    out, err = capsys.readouterr()
    assert "check-store" in out
    assert "Exit codes: 0 fine" in out
    assert err == ""


def commands(group: Any = None, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield how each command is called, those of groups too."""
    yield path
    for name, command in getattr(group or get_command(app), "commands", {}).items():
        yield from commands(command, *path, name)


@pytest.mark.parametrize("path", [*commands()], ids=" ".join)
def test_usage_has_each_bracket_once(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Typer puts brackets round what may be left out, and dots behind what may be repeated."""
    assert cli.run([*path, "--help"]) == 0
    usage = capsys.readouterr().out.strip().partition("\n\n")[0]
    assert usage.startswith("Usage: ")
    assert not re.search(r"\[\[|\]\]|\.\.\.\}|\.{4}", usage), usage


@pytest.mark.parametrize("path", [*commands()], ids=" ".join)
def test_lists_of_commands_cut_no_text_off(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*path, "--help"]) == 0
    listed = capsys.readouterr().out.partition("\nCommands:\n")[2]
    assert not re.search(r"\.\.\.$", listed, re.MULTILINE), listed


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_what_needs_no_engine_loads_none(argument: str) -> None:
    """The engine takes most of a second to load."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "reef", argument],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "reef.cli._app" in imported
    heavy = {"pyarrow", "numpy", "msgspec", "obstore", "sqlalchemy", "boto3", "rich"}
    heavy |= {"reef.engine", "reef.store", "reef.kv", "reef.database"}
    heavy |= {"pyspark", "pandas", "duckdb", "reef.jobs", "reef.spark"}
    assert imported & heavy == set()


def test_figures_that_are_told_without_loading_the_engine_are_its_own() -> None:
    from reef.cli import _kv
    from reef.cli.arguments import IDEMPOTENCY_BYTES_MAX
    from reef.cli.health import _check_store
    from reef.engine import WriteRequest, check_idempotency_key, open_for_writing
    from reef.format import KEY, TOMBSTONE, log_schema
    from reef.kv import FACE
    from reef.store import StoreCheck, open_store

    defaults = inspect.signature(StoreCheck).parameters
    assert defaults["racers"].default == _check_store.RACERS_DEFAULT
    assert defaults["rounds"].default == _check_store.ROUNDS_DEFAULT
    context = reef.Database(open_store("memory://"), log_segment_max_bytes="8KiB").context()

    def check(racers: int, rounds: int) -> None:
        parts = {"settings": context.settings, "clock": context.clock, "rng": context.rng}
        StoreCheck(context.store, racers=racers, rounds=rounds, **parts)

    racers, rounds = _check_store.RACERS_MAX, _check_store.ROUNDS_MAX
    check(racers, rounds)
    for wrong in ((racers + 1, rounds), (racers, rounds + 1)):
        with pytest.raises(errors.InvalidInputError):
            check(*wrong)

    longest = b"k" * IDEMPOTENCY_BYTES_MAX
    assert check_idempotency_key(longest) == longest
    with pytest.raises(errors.InvalidInputError):
        check_idempotency_key(longest + b"k")

    row = {KEY: b"key", TOMBSTONE: False, "value": b"value"}
    batch = pa.RecordBatch.from_pylist([row], schema=log_schema(FACE.schema))
    most = (8 << 10) - _kv.OVERHEAD_BYTES
    writer = open_for_writing(context, "stock", FACE)
    writer.write(WriteRequest(batch=batch, nbytes=most))
    with pytest.raises(errors.InvalidInputError):
        writer.write(WriteRequest(batch=batch, nbytes=most + 1))
    writer.close()


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["check-store"], "Missing argument 'URL'"),
        (["check-store", "memory://", "--frob"], "No such option"),
        (["check-store", "memory://", "--racers", "1"], "--racers"),
        (["check-store", "memory://", "--rounds", "many"], "--rounds"),
        (["check-store", f"ftp://x?password={SECRET}"], "expected a URL that starts with file://"),
        (["check-store", f"s3://bucket?secret={SECRET}"], "s3:// has no option 'secret'"),
        (["check-store", f"s3://me:{SECRET}@bucket"], "give credentials as options"),
        (["check-store", f"s3://bucket?timeout=-1&secret_access_key={SECRET}"], "timeout = '-1'"),
        (["check-store", "memory://", f"s3://b?secret_access_key={SECRET}"], "s3://b?..."),
        (["check-store", "memory://", f"s3://me:{SECRET}@b"], "s3://...@b"),
        (["check-store", "file:///no/such/folder"], "the folder '/no/such' does not exist"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_1(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1
    assert err.startswith("reef: ")
    assert SECRET not in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidInputError("fix it"), 1),
        (errors.BucketNotFoundError("fix it"), 1),
        (errors.AccessDeniedError("fix it"), 1),
        (errors.UnsupportedStoreError("fix it"), 1),
        (errors.UnavailableError("try later"), 2),
        (errors.NotWrittenError("free some space"), 2),
        (errors.OutcomeUnknownError("key", "no answer"), 2),
        (errors.FencedError("re-open"), 2),
        (errors.ClosedError("open a new one"), 2),
        (errors.NotFoundError("not there"), 2),
        (errors.ConflictError("key", b"theirs"), 2),
        (errors.CorruptError("key", 3, "this", "that"), 2),
        (errors.IncompleteError("key", 3, "this", "that"), 2),
        (errors.FormatVersionError("key", 3, "this", "that"), 2),
        (errors.InvariantError("two\nlines"), 2),
    ],
)
def test_every_error_of_reef_has_an_exit_code_and_no_traceback(
    error: errors.ReefError,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("reef.cli._app.invoke", fail)
    assert cli.run(["anything"]) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"reef: {' '.join(str(error).split())}\n")


def test_other_errors_are_bugs_and_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("reef.cli._app.invoke", fail)
    with pytest.raises(ZeroDivisionError):
        cli.run(["anything"])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no answer from s3://b/p?secret=x&y=z (timeout)", "no answer from s3://b/p?... (timeout)"),
        ("'az://c?sig=a%2Fb' and http://h/c?sig=1", "'az://c?...' and http://h/c?..."),
        ("postgresql://me:pw@host/db is down", "postgresql://...@host/db is down"),
        ("is it there? yes", "is it there? yes"),
        ("s3://me:pw@host/s3://you@there?a=s3://b?c", "s3://...@host/s3://...@there?..."),
    ],
)
def test_credentials_are_left_out(text: str, shown: str) -> None:
    assert cli.without_credentials(text) == shown


@pytest.mark.parametrize("part", ["a", "s3:", "s3://", "://", "@", "?", "a@", "s3://a?", "s3://a@"])
def test_leaving_credentials_out_of_a_very_long_text_ends(part: str) -> None:
    """A pattern that begins again at each letter, or at each scheme, would take half an hour here."""
    text = part * (400_000 // len(part))
    shown = cli.without_credentials(text)
    assert (shown == text) == ("://" not in text or part in ("s3://", "://"))


def test_control_characters_are_shown_and_not_sent_to_the_terminal() -> None:
    assert cli.visible("\x1b]0;title\x07\x9b2J\u202e\x00\n\tä") == (
        "\\x1b]0;title\\x07\\x9b2J\\u202e\\x00\n\tä"
    )


def test_reports_and_errors_show_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "k\x1b[2J\x9d"
    report = Report({"key": evil}, [evil, {evil: evil}, Table([evil], [[evil]], evil)])
    report.print(as_json=False)
    assert "\x1b" not in (said := capsys.readouterr().out)
    assert said.count("k\\x1b[2J\\x9d") == 6
    report.print(as_json=True)
    assert json.loads(capsys.readouterr().out) == {"key": evil}

    def fail(_: object) -> int:
        raise NotFoundError(evil)

    monkeypatch.setattr("reef.cli._app.invoke", fail)
    assert cli.run(["anything"]) == 2
    assert capsys.readouterr().err == "reef: k\\x1b[2J\\x9d\n"


def test_one_namespace_that_cannot_be_read_stops_no_other(tmp_path: Path) -> None:
    url = f"file://{tmp_path}?fsync=off"
    with reef.connect(url) as db:
        for name in ("a", "b", "c", "d"):
            db.kv(name).close()

    def do(name: str) -> str:
        errors = {"a": AccessDeniedError("a"), "b": UnavailableError("b"), "c": NotFoundError("c")}
        if name in errors:
            raise errors[name]
        return name

    with reef.connect(url) as db:
        found = dict(Scope(every=True).each(db, do))
        assert [type(one).__name__ for one in found.values()] == [
            *("AccessDeniedError", "UnavailableError", "NotFoundError", "str")
        ]
        with pytest.raises(InvalidInputError, match="for all"):
            dict(Scope(every=True).each(db, lambda _: _refuse()))


def _refuse() -> None:
    raise InvalidInputError("for all")


def test_the_table_and_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["check-store", "memory://here", "--racers", "2", "--rounds", "2"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "one process only" in out
    assert "2 rounds of 2: one winner each" in " ".join(out.replace("│", " ").split())
    assert out.splitlines()[-1] == "memory://here can back a log."


def test_json_is_one_object_and_nothing_else(tmp_path: Path) -> None:
    arguments = ["check-store", f"file://{tmp_path}/b?fsync=off", "--rounds", "2", "--json"]
    done = subprocess.run(command(*arguments), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["url"] == f"file://{tmp_path}/b?fsync=off"
    assert report["can_back_a_log"] is True
    assert report["reason"] is None
    assert (report["racers"], report["rounds"], report["left"]) == (8, 2, [])
    checks = {check["name"]: check for check in report["checks"]}
    assert checks["racing processes"] == {
        "name": "racing processes",
        "ok": True,
        "seen": "1 rounds of 8: one winner each, and its bytes stay",
    }
    assert checks["latency"]["ok"] is None
    assert not (tmp_path / "b" / "check-store").exists()


def test_a_store_that_is_not_there_is_a_problem_and_not_a_verdict() -> None:
    url = f"s3://bucket?endpoint=http://127.0.0.1:1&access_key_id=a&secret_access_key={SECRET}"
    done = subprocess.run(command("check-store", url), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("reef: s3://bucket: no answer")
    assert done.stderr.count("\n") == 1
    assert SECRET not in done.stderr


def test_json_is_there_also_when_the_store_is_not() -> None:
    url = f"s3://bucket?endpoint=http://127.0.0.1:1&access_key_id=a&secret_access_key={SECRET}"
    done = subprocess.run(
        command("check-store", "--json", url), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    report = json.loads(done.stdout)
    assert report["can_back_a_log"] is False
    assert report["reason"].startswith("answer: s3://bucket: no answer")


@pytest.fixture
def running(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A check that is in the middle of a race, in a process group of its own."""
    bucket = tmp_path / "bucket"
    rounds = "1000000" if request.param == "racing-threads" else "1500"
    url = f"file://{bucket}?fsync=off"
    process = subprocess.Popen(
        command("check-store", url, "--racers", "2", "--rounds", rounds, "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        # What runs the tests may ignore it, as a shell's background jobs do.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:

        def has_begun() -> bool:
            assert process.poll() is None, process.stderr and process.stderr.read()
            return any(bucket.glob(f"check-store/*/{request.param}/*"))

        until(has_begun, "a race")
        yield process, bucket
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def group_is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("running", ["racing-threads", "racing-processes"], indirect=True)
def test_ctrl_c_is_one_line_and_leaves_nothing(running: tuple[subprocess.Popen[str], Path]) -> None:
    process, bucket = running
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the racing processes too
    out, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, out, err) == (130, "", "reef: interrupted\n")
    assert not (bucket / "check-store").exists()
    until(lambda: group_is_gone(process.pid), "the end of the racing processes")


@pytest.mark.parametrize("running", ["racing-processes"], indirect=True)
def test_racing_processes_do_not_outlive_a_kill(
    running: tuple[subprocess.Popen[str], Path],
) -> None:
    process, _ = running
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: group_is_gone(process.pid), "the end of the racing processes")


@pytest.mark.parametrize("imported", ["typer", "numpy", "pyarrow.lib", "reef.database"])
def test_ctrl_c_is_one_line_from_the_beginning(tmp_path: Path, imported: str) -> None:
    """While Python imports what the command needs, and when it waits for a value to put."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-X", "importtime", "-m"),
            *("reef", "kv", "put", f"file://{tmp_path}/b", "stock", "key", "-"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    with process:
        while process.stderr.readline().rpartition("|")[2].strip() != imported:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said = [line for line in process.stderr.read().splitlines() if "import time:" not in line]
    assert (process.returncode, said) == (130, ["reef: interrupted"])
    assert not (tmp_path / "b").exists()


def test_an_interrupt_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As for a job that a shell has put into the background."""
    process = subprocess.Popen(
        command("kv", "put", f"file://{tmp_path}/b?fsync=off", "stock", "key", "-"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    process.send_signal(signal.SIGINT)
    out, err = process.communicate("value", timeout=DEADLINE_SECONDS)
    assert (process.returncode, err) == (0, "")
    assert int(out) > 0


def test_other_errors_of_the_system_are_bugs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BrokenPipeError("not that of stdout")

    monkeypatch.setattr("reef.cli._app.invoke", fail)
    with pytest.raises(BrokenPipeError, match="not that of stdout"):
        cli.run(["anything"])


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["check-store", "memory://x"]])
def test_a_full_disk_for_the_output_is_one_line_and_a_code_of_its_own(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command(*arguments), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 3
    assert done.stderr == "reef: stdout could not be written: No space left on device\n"


def test_an_error_that_cannot_be_told_keeps_its_exit_code() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command("frobnicate"), stdout=full, stderr=full, check=False)
    assert done.returncode == 1


def test_streams_that_are_closed_are_no_error() -> None:
    line = f"{sys.executable} -m reef --version"
    for closed in (">&-", "2>&-", ">&- 2>&- <&-"):
        done = subprocess.run(["sh", "-c", f"{line} {closed}"], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
