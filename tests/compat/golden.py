"""The golden files: one of each object, as format version 1 writes it.

`python -m tests.compat.golden` writes the files that are missing and never one that is there:
files of a released version are read by every later one, for good.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from reef.format import (
    LogKind,
    LogObject,
    SegmentOptions,
    decode_dedup,
    decode_log,
    decode_manifest,
    decode_segment,
    encode_dedup,
    encode_log,
    encode_manifest,
)
from tests.support.format.samples import (
    sample_dedup,
    sample_log,
    sample_manifest,
    sample_rows,
    sample_segment,
)

FOLDER = Path(__file__).parent / "v1"


def read(path: Path) -> Any:
    """Return what a golden file says, as plain JSON values."""
    data = path.read_bytes()
    decode: dict[str, Callable[[bytes], Any]] = {
        ".wal": lambda data: _plain_log(decode_log(data)),
        ".json": lambda data: _plain(decode_manifest(data)),
        ".dedup": lambda data: _plain(decode_dedup(data)),
        ".seg": _plain_segment,
    }
    return json.loads(msgspec.json.encode(decode[path.suffix](data)))


def _plain(value: object) -> Any:
    return msgspec.to_builtins(value)


def _plain_log(log: LogObject) -> Any:
    def plain(value: object) -> object:
        if isinstance(value, pa.RecordBatch):
            return {"schema": str(value.schema), "rows": value.to_pylist()}
        return str(value) if isinstance(value, pa.Schema) else value

    fields = {name: getattr(log, name) for name in log.__struct_fields__}
    fields["prev"] = log.prev._asdict()
    fields["records"] = [
        {name: plain(getattr(record, name)) for name in record.__struct_fields__}
        for record in log.records
    ]
    return fields


def _plain_segment(data: bytes) -> Any:
    tail, table = decode_segment(data)
    return {
        "footer": tail.footer,
        "schema": str(tail.schema),
        "index": tail.row_index.to_pylist(),
        "places": {name: list(places) for name, places in tail.column_places.items()},
        "filter": tail.bloom.data,
        "rows": table.to_pylist(),
    }


def files() -> dict[str, bytes]:
    """Return the files as this version would write them."""
    return {
        **{f"log-{k.name.lower()}.wal": encode_log(sample_log(k)) for k in LogKind},
        "log-data-zstd.wal": encode_log(sample_log(), codec="zstd"),
        "manifest.manifest.json": encode_manifest(sample_manifest()),
        "window.dedup": encode_dedup(sample_dedup()),
        "small-blocks.seg": sample_segment()[0],
        "zstd.seg": sample_segment(sample_rows(60), SegmentOptions(codec="zstd"))[0],
        "lz4.seg": sample_segment(sample_rows(60), SegmentOptions())[0],
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, data in files().items():
        path, said = FOLDER / name, FOLDER / f"{name}.expected"
        if not path.exists():
            path.write_bytes(data)
            said.write_text(json.dumps(read(path), indent=1, sort_keys=True) + "\n")
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
