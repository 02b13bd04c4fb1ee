"""What the keys under a namespace's prefix name."""

from __future__ import annotations

import re

FOLDERS = ("manifest", "wal", "segments", "dedup")
"""Where collection deletes. Whatever else lies under the prefix is none of its business."""

_ULID = r"[0-7][0-9A-HJKMNP-TV-Z]{25}"
_SEGMENT = re.compile(rf"({_ULID}(?:-[a-z0-9-]{{1,40}})?)\.seg")
_WINDOW = re.compile(rf"({_ULID})\.dedup")
_EPOCH = re.compile(r"e([0-9]+)")


def folder_prefix(namespace: str, name: str) -> str:
    """Return the prefix of one of a namespace's folders."""
    return f"namespaces/{namespace}/{name}/"


def parse_segment(name: str) -> str | None:
    """Return the id of the segment that a file of segments/ holds, or None."""
    match = _SEGMENT.fullmatch(name)
    return None if match is None else match[1]


def parse_window(name: str) -> str | None:
    """Return the id of the dedup window that a file of dedup/ holds, or None."""
    match = _WINDOW.fullmatch(name)
    return None if match is None else match[1]


def owner_of(segment: str) -> str:
    """Return who wrote a segment: an intent's id, or e<writer epoch>; "" if its id does not say."""
    return segment.partition("-")[2]


def epoch_of(owner: str) -> int | None:
    """Return the writer epoch that an owner is, or None."""
    match = _EPOCH.fullmatch(owner)
    return None if match is None else int(match[1])
