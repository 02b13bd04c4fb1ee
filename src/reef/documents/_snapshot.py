"""A version of documents that stays readable."""

from __future__ import annotations

from reef.documents._view import DocumentView
from reef.documents.types import Schema
from reef.engine import HeldSnapshot, SnapshotView


class DocumentSnapshot(HeldSnapshot, DocumentView):
    """A view that stays readable until it expires or is released, in this process or another."""

    def __init__(self, view: SnapshotView, schema: Schema) -> None:
        HeldSnapshot.__init__(self, view)
        DocumentView.__init__(self, view, schema)
