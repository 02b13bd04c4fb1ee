"""One fuzz target: `python -m fuzz.target NAME [libFuzzer options]`.

Each decoder gets the bytes as they are, which mostly end at the checksum; NAME-unchecked lets every
checksum pass (they are all 0), so that what lies behind it meets arbitrary bytes too. Decoding may
take 512 MB, whatever the bytes say.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["reef"]):
    from reef.errors import CorruptError, FormatVersionError, IncompleteError
    from reef.format import decode_dedup, decode_log, decode_manifest, decode_segment

import crc32c

from tests.compat import golden
from tests.hostile.hostile_buckets import files as hostile_files
from tests.hostile.memory_limit import limit_memory

DECODERS: dict[str, tuple[str, Callable[[bytes], object]]] = {
    "log": (".wal", decode_log),
    "manifest": (".manifest.json", decode_manifest),
    "dedup": (".dedup", decode_dedup),
    "segment": (".seg", decode_segment),
}
UNCHECKED = "-unchecked"


def one_input(decode: Callable[[bytes], object], data: bytes) -> None:
    """Decode; only the three errors of a damaged object may come out."""
    with contextlib.suppress(IncompleteError, CorruptError, FormatVersionError):
        decode(data)


def seeds(name: str) -> dict[str, bytes]:
    """Return the golden samples of a format, and forged ones, as this process would write them."""
    suffix, _ = DECODERS[name.removesuffix(UNCHECKED)]
    files = {**golden.files(), **hostile_files()}
    return {file: data for file, data in files.items() if file.endswith(suffix)}


def main() -> None:
    name, corpus = sys.argv[1], Path(sys.argv[2])
    if name.endswith(UNCHECKED):
        crc32c.crc32c = lambda *_: 0
    _, decode = DECODERS[name.removesuffix(UNCHECKED)]
    corpus.mkdir(parents=True, exist_ok=True)
    for file, data in seeds(name).items():
        (corpus / file).write_bytes(data)
    limit_memory()
    atheris.Setup([sys.argv[0], *sys.argv[2:]], lambda data: one_input(decode, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
