"""A manifest's bytes, whole, and with a body that its encoder would refuse."""

from __future__ import annotations

import json
from typing import Any

from crc32c import crc32c

from reef.format import encode_manifest
from tests.support.format.samples import sample_manifest

KEY = "namespaces/what-if/manifest/00000000000000000007.manifest.json"
SAMPLE = sample_manifest()
DATA = encode_manifest(SAMPLE)


def sealed(body: bytes, *, version: str = "1", length: int | None = None) -> bytes:
    """Return a JSON object framed as a manifest with the right length and checksum, unchecked."""
    inner = body[1:-1]
    head = '{"magic":"RFMAN1","format_version":%s,"bytes":"%016d",'
    total = len(head % (version, 0)) + len(inner) + len(',"checksum":"00000000"}\n')
    covered = (head % (version, total if length is None else length)).encode() + inner
    return covered + b',"checksum":"%08x"}\n' % crc32c(covered)


def fields() -> dict[str, Any]:
    """Return the sample's body as plain JSON values, to be spoilt."""
    values: dict[str, Any] = json.loads(DATA)
    for framing in ("magic", "format_version", "bytes", "checksum"):
        del values[framing]
    return values
