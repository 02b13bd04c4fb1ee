"""Options of writes: `df.write.format("reef")` and `df.writeStream.format("reef")`.

operation     upsert (whole rows), patch (some attributes of documents that exist; null takes one
              away), delete (by id or key), create (only what is not there yet)
method        auto, log or bulk; see `reef.spark._write._batch_write`
job_key       a name for this write: under one key, rows are written once however often it is tried
duplicates    an id that is there twice: error, or last (the row that the later task has)
skip          true: leave out what cannot be patched or created, instead of refusing its batch
declared      types of new attributes: embedding=vector[128],body=json, or the same as JSON
face          documents, or kv: rows with the columns key and value
target_bytes  how large the segments of a bulk load are to be
memory        rows that one task of a bulk load holds, about
sorted        true: each task's rows come in order of ids
query_id      streams: the name under which batches are counted; by default the id of the query,
              which lives in its checkpoint
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, cast, get_args

from reef.documents.types import Type
from reef.errors import InvalidInputError
from reef.jobs.load import BUDGET_BYTES_DEFAULT, TARGET_BYTES_DEFAULT, FaceName
from reef.segment import Duplicates
from reef.settings import parse_bytes, parse_flag
from reef.spark.source import NAMESPACE_OPTIONS, NamespaceRef, check_names

Operation = Literal["upsert", "patch", "delete", "create"]
Method = Literal["auto", "log", "bulk"]
KEY_BYTES_MAX = 480

_T = TypeVar("_T", bound=str)
_WRITE = (
    *("operation", "method", "job_key", "duplicates", "skip", "declared", "face"),
    *("target_bytes", "memory", "sorted"),
)
_STREAM = ("query_id",)
_SPARKS_OWN = ("checkpointlocation", "queryname")


@dataclass(frozen=True)
class WriteOptions:
    """How rows are written."""

    ref: NamespaceRef
    operation: Operation
    method: Method
    job_key: str | None
    """None: a fresh one for each write."""
    duplicates: Duplicates
    skips: bool
    declared: dict[str, str]
    face: FaceName
    target_bytes: int
    memory_bytes: int
    is_sorted: bool
    query_id: str | None = None

    @property
    def key_column(self) -> str:
        """The column that identifies a row."""
        return "id" if self.face == "documents" else "key"

    @staticmethod
    def of_arguments(url: str, namespace: str, options: Mapping[str, object]) -> WriteOptions:
        """Return the options of a write that Python code calls; None is as if left out."""
        texts = {name: str(value) for name, value in options.items() if value is not None}
        return WriteOptions.of({**texts, "url": url, "namespace": namespace})

    @staticmethod
    def of(options: Mapping[str, str], *, is_stream: bool = False) -> WriteOptions:
        """Return the options of a write. Raises InvalidInputError, which names the option."""
        known = {name.lower(): value for name, value in options.items()}
        if is_stream:
            known = {name: value for name, value in known.items() if name not in _SPARKS_OWN}
        check_names(known, (*NAMESPACE_OPTIONS, *_WRITE, *(_STREAM if is_stream else ())))
        found = WriteOptions(
            ref=NamespaceRef.of(known),
            operation=_one_of(known, "operation", cast(tuple[Operation], get_args(Operation))),
            method=_one_of(known, "method", cast(tuple[Method], get_args(Method))),
            job_key=_key_option(known, "job_key"),
            duplicates=_one_of(known, "duplicates", cast(tuple[Duplicates], get_args(Duplicates))),
            skips=parse_flag("skip", known.get("skip", "off")),
            declared=parse_declared(known.get("declared", "")),
            face=_one_of(known, "face", cast(tuple[FaceName], get_args(FaceName))),
            target_bytes=parse_bytes(
                "target_bytes", known.get("target_bytes", TARGET_BYTES_DEFAULT), 1, 1 << 40
            ),
            memory_bytes=parse_bytes(
                "memory", known.get("memory", BUDGET_BYTES_DEFAULT), 1, 1 << 40
            ),
            is_sorted=parse_flag("sorted", known.get("sorted", "off")),
            query_id=_key_option(known, "query_id"),
        )
        found._check(is_stream)
        # Deleting an id twice is the same as once.
        return replace(found, duplicates="last") if found.operation == "delete" else found

    def _check(self, is_stream: bool) -> None:
        if self.method == "bulk" and self.operation != "upsert":
            raise InvalidInputError(
                f"method = 'bulk' does not go with operation = {self.operation!r}, "
                "which goes through the log: give method log or auto"
            )
        if self.face == "kv" and self.operation == "patch":
            raise InvalidInputError(
                "operation = 'patch' is for documents, and face is kv: give another operation"
            )
        if self.skips and self.operation not in ("patch", "create"):
            raise InvalidInputError(
                "skip is given without operation patch or create: give one of them, or "
                "leave skip out"
            )
        if is_stream and self.job_key is not None:
            raise InvalidInputError(
                f"job_key = {self.job_key!r} is given for a stream, which counts its "
                "batches: leave it out"
            )


def parse_declared(text: str) -> dict[str, str]:
    """Return types by name from `a=vector[3],b=json` or a JSON object. Raises InvalidInputError."""
    allowed = 'NAME=TYPE,NAME=TYPE or, as JSON, {"NAME": "TYPE"}'
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except ValueError:
            raise InvalidInputError.of("declared", text, allowed) from None
        pairs = list(found.items())
    else:
        pairs = [
            tuple(one.strip() for one in p.split("=", 1)) for p in text.split(",") if p.strip()
        ]
    for pair in pairs:
        if len(pair) < 2 or not all(isinstance(one, str) and one for one in pair):
            raise InvalidInputError.of("declared", text, allowed)
        Type.parse(pair[1])
    return dict(pairs)


def _one_of(options: Mapping[str, str], name: str, allowed: tuple[_T, ...]) -> _T:
    text = options.get(name, "").lower() or allowed[0]
    for one in allowed:
        if text == one:
            return one
    raise InvalidInputError.of(name, options[name], f"one of {', '.join(allowed)}")


def _key_option(options: Mapping[str, str], name: str) -> str | None:
    text = options.get(name)
    if not text:
        return None
    if len(text.encode()) > KEY_BYTES_MAX:
        raise InvalidInputError.of(name, text[:64], f"at most {KEY_BYTES_MAX} bytes of text")
    return text
