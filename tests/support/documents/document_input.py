"""Input of documents as tests read it, and some values of it."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest

from reef.documents.input import read_rows
from reef.documents.types import Schema
from reef.errors import InvalidInputError
from tests.support.documents.document_rows import schema_of

NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
ONE = uuid.UUID(int=1)


def column(values: Any, type: str | None = None, name: str = "x") -> Any:
    """Read `values` as the attribute x (of that type, if given) of as many documents."""
    ids = [f"d{i}" for i in range(len(values))]
    return read_rows({"id": ids, name: values}, schema_of(**{name: type}) if type else Schema())


def refused(message: str) -> Any:
    return pytest.raises(InvalidInputError, match=message)
