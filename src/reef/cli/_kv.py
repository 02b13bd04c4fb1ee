"""`reef kv`: keys and values from the command line.

Keys and values are text, or hexadecimal digits or base64 by option; a value can also come from a
file or from stdin, as it is. Writing takes the namespace over: a writer that runs elsewhere is fenced.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import itertools
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from reef.cli import visible
from reef.cli._report import Report, key_text, restored_report
from reef.cli.arguments import (
    IDEMPOTENCY_BYTES_MAX,
    AsJson,
    Namespace,
    RestoreAt,
    Url,
    Version,
    check_idempotency,
    connect,
    given_version,
    group,
    name_and_branch,
)
from reef.errors import InvalidInputError
from reef.types import KEY_BYTES_MAX, check_namespace

if TYPE_CHECKING:
    from reef.engine import Receipt
    from reef.kv import KeyValue, KeyValueView
    from reef.settings import Settings

OVERHEAD_BYTES = 1024  # what a writer adds to the bytes of a batch when it holds them to the bounds
_STDIN = "-"

Key: TypeAlias = Annotated[
    str, typer.Argument(metavar="KEY", help="The key; text unless --hex or --base64.")
]
IdempotencyKey: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="Makes a repeat safe: it writes nothing and prints the first receipt."
    ),
]


@dataclass(frozen=True)
class Coding:
    """How keys and values are written on the command line and printed."""

    hex: Annotated[bool, typer.Option("--hex", help="Keys and values are hexadecimal digits.")] = (
        False
    )
    base64: Annotated[bool, typer.Option("--base64", help="Keys and values are base64.")] = False

    def __post_init__(self) -> None:
        if self.hex and self.base64:
            raise InvalidInputError("both --hex and --base64 given; give at most one")

    @property
    def name(self) -> str:
        """The name of the encoding."""
        return "hex" if self.hex else "base64" if self.base64 else "text"

    def parse(self, what: str, text: str) -> bytes:
        """Return the bytes that `text` stands for. Raises InvalidInputError."""
        try:
            if self.name == "hex":
                return bytes.fromhex(text)
            if self.name == "base64":
                return base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error) as error:
            raise InvalidInputError.of(what, text[:64], f"{self.name} ({error})") from error
        return os.fsencode(text)  # just as the shell gave it, be it UTF-8 or not

    def parse_key(self, text: str) -> bytes:
        """Return the key that `text` stands for. Raises InvalidInputError."""
        key = self.parse("KEY", text)
        if len(key) > KEY_BYTES_MAX:
            raise InvalidInputError(
                f"KEY = {text[:64]!r} has {len(key)} bytes: expected at most {KEY_BYTES_MAX}"
            )
        return key

    def raw(self, data: bytes) -> bytes:
        """Return bytes as they are printed."""
        if self.name == "hex":
            return data.hex().encode()
        return base64.b64encode(data) if self.name == "base64" else data

    def json_text(self, data: bytes) -> tuple[str, str]:
        """Return bytes as JSON can hold them, and how: text that is none becomes base64."""
        if self.name != "text":
            return self.raw(data).decode(), self.name
        try:
            return data.decode(), "text"
        except UnicodeDecodeError:
            return base64.b64encode(data).decode(), "base64"


def get(
    url: Url,
    namespace: Namespace,
    key: Key,
    coding: Coding,
    version: Version,
    exact: Annotated[
        bool, typer.Option("--exact", "-n", help="Print no newline after the value.")
    ] = False,
    as_json: AsJson = False,
) -> Report:
    """Print the value of a key. Exit code 2, and a line on stderr: the key is not there."""
    wanted = coding.parse_key(key)
    with _open_pairs(url, namespace, version) as kv:
        value = kv.get(wanted)
    if value is None:
        print(f"reef: key {key_text(wanted)!r} does not exist", file=sys.stderr)
    elif not as_json:
        sys.stdout.buffer.write(_on_terminal(coding.raw(value)) + (b"" if exact else b"\n"))
    return Report(_pair(coding, wanted, value), (), is_problem=value is None)


def put(
    url: Url,
    namespace: Namespace,
    key: Key,
    coding: Coding,
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="The value, or - to read it from stdin.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="PATH", help="Read the value from a file.")
    ] = None,
    idempotency_key: IdempotencyKey = None,
) -> Report:
    """Set the value of a key durably, and print the LSN. Creates the namespace if necessary."""
    # Everything is looked at before the namespace is opened: that fences others.
    check_namespace(namespace)
    wanted = coding.parse_key(key)
    once = _once(idempotency_key)
    with connect(url) as db:
        settings = db.context().settings
        data = _given_value(coding, value, file, settings.log_segment_max_bytes)
        _check_request_size(settings, len(wanted) + len(data))
        with db.kv(**name_and_branch(namespace)) as kv:
            receipt = kv.put(wanted, data, idempotency_key=once)
    return _receipt_report(receipt)


def delete(
    url: Url,
    namespace: Namespace,
    key: Key,
    coding: Coding,
    idempotency_key: IdempotencyKey = None,
) -> Report:
    """Delete a key durably, and print the LSN. The key need not exist."""
    check_namespace(namespace)
    wanted = coding.parse_key(key)
    once = _once(idempotency_key)
    with connect(url) as db:
        _check_request_size(db.context().settings, len(wanted))
        with db.kv(**name_and_branch(namespace)) as kv:
            receipt = kv.delete(wanted, idempotency_key=once)
    return _receipt_report(receipt)


def scan(
    url: Url,
    namespace: Namespace,
    coding: Coding,
    version: Version,
    start: Annotated[str | None, typer.Option(metavar="KEY", help="Start at this key.")] = None,
    end: Annotated[str | None, typer.Option(metavar="KEY", help="Stop before this key.")] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="KEY", help="Only keys with this prefix.")
    ] = None,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="From the last key to the first.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="The most keys.")] = None,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Print no values.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
) -> None:
    """Print keys and values in key order.

    A line has a pair, separated by a tab. Use --hex, --base64 or --json if keys or values hold tabs or newlines.
    """

    def bound(name: str, text: str | None) -> bytes | None:
        return None if text is None else coding.parse(name, text)

    low, high, same = bound("--start", start), bound("--end", end), bound("--prefix", prefix)
    with _open_pairs(url, namespace, version) as kv:
        batches = kv.scan(start=low, end=high, prefix=same, reverse=reverse)
        columns = ((batch.column(0).to_pylist(), batch.column(1).to_pylist()) for batch in batches)
        rows = itertools.chain.from_iterable(zip(*some, strict=True) for some in columns)
        for key, value in itertools.islice(rows, limit and min(limit, sys.maxsize)):
            sys.stdout.buffer.write(_pair_line(coding, key, None if keys_only else value, as_json))


def restore(url: Url, namespace: Namespace, at: RestoreAt) -> Report:
    """Restore an earlier version, as a new commit. Newer versions stay readable."""
    given, name = given_version(at), name_and_branch(namespace)
    with connect(url) as db:
        # First: opening it for writing fences its writer.
        with db.kv(**name, mode="r") as reader:
            lsn = reader.at(**given).lsn
        with db.kv(**name) as kv:
            return restored_report(kv.restore(lsn=lsn))


app = group(
    "kv",
    "Read and write keys and values. A command that writes fences other writers: they must open the "
    "namespace again.",
    {"get": get, "put": put, "delete": delete, "restore": restore, "scan": scan},
)


def _once(key: str | None) -> bytes | None:
    return check_idempotency("--idempotency-key", key, IDEMPOTENCY_BYTES_MAX)


@contextlib.contextmanager
def _open_pairs(url: str, namespace: str, version: Version) -> Iterator[KeyValue | KeyValueView]:
    with connect(url) as db, db.kv(**name_and_branch(namespace), mode="r") as kv:
        if version.is_newest:
            yield kv
            return
        view = kv.at(**version.as_dict())
        if version.is_time:
            print(f"reef: at LSN {view.lsn}", file=sys.stderr)
        yield view


def _given_value(coding: Coding, value: str | None, file: Path | None, most: int) -> bytes:
    if (value is None) == (file is None):
        given = "neither" if value is None else "both"
        raise InvalidInputError(f"VALUE and --file: {given} given; give one of the two")
    if value is not None and value != _STDIN:
        data = coding.parse("VALUE", value)
    else:
        stdin = contextlib.nullcontext(sys.stdin.buffer if sys.stdin else io.BytesIO())
        try:
            with stdin if file is None else file.open("rb") as source:
                data = source.read(most + 1)
        except OSError as error:
            what = (
                f"stdin, which VALUE = {_STDIN!r} stands for,"
                if file is None
                else f"--file {str(file)!r}"
            )
            raise InvalidInputError(f"{what} cannot be read: {error}") from error
    if len(data) > most:
        allowed = f"at most log_segment_max_bytes, which is {most}"
        raise InvalidInputError(f"VALUE is too large: expected {allowed}")
    return data


def _check_request_size(settings: Settings, nbytes: int) -> None:
    """Raise InvalidInputError for a write that its writer would refuse as too large."""
    for name in ("log_segment_max_bytes", "memtable_max_bytes"):
        limit = getattr(settings, name)
        if nbytes + OVERHEAD_BYTES > limit:
            raise InvalidInputError(
                f"KEY and VALUE have {nbytes} bytes: expected, with {OVERHEAD_BYTES} "
                f"more for the record, at most {name} = {limit}"
            )


def _receipt_report(receipt: Receipt) -> Report:
    return Report(
        {"lsn": receipt.lsn, "outcomes": list(receipt.outcomes), "replayed": receipt.replayed},
        [str(receipt.lsn)],
    )


def _on_terminal(data: bytes) -> bytes:
    """Return bytes as they are; on a terminal without control characters, which it would obey."""
    return visible(data.decode(errors="replace")).encode() if sys.stdout.isatty() else data


def _pair_line(coding: Coding, key: bytes, value: bytes | None, as_json: bool) -> bytes:
    """Return a pair, or a key without its value, as a line."""
    if not as_json:
        pair = coding.raw(key) + (b"" if value is None else b"\t" + coding.raw(value))
        return _on_terminal(pair) + b"\n"
    said = _pair(coding, key, value)
    if value is None:
        said = {name: said[name] for name in ("key", "key_encoding")}
    return json.dumps(said).encode() + b"\n"


def _pair(coding: Coding, key: bytes, value: bytes | None) -> dict[str, object]:
    text, how = coding.json_text(key)
    value_and_coding = (None, None) if value is None else coding.json_text(value)
    return {
        "key": text,
        "key_encoding": how,
        "value": value_and_coding[0],
        "value_encoding": value_and_coding[1],
    }
