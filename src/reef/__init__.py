"""Reef: a database engine whose only durable state is a bucket.

connect(url) -> Database                a bucket, opened: file://, memory://, s3://, gs://, az://
CreateOnly, MustExist, Equals           what must hold of a row for its write to count
Incoming                                in a condition: the value of the document that comes in
Receipt                               the result of a commit
aio, jobs, otel, spark, sqlite          packages, loaded when they are asked for
every error, by what to do next         see `reef.errors`
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from reef.errors import *  # noqa: F403
from reef.errors import __all__ as _errors

if TYPE_CHECKING:
    from reef.database import Database, connect
    from reef.documents import Incoming
    from reef.engine import CreateOnly, Equals, MustExist, Receipt

__version__ = "0.1.0"

# Nothing is printed unless the program says where to: docs/how-to/operate.md lists the loggers.
logging.getLogger("reef").addHandler(logging.NullHandler())

# Imported on first use: a program that needs only the errors does not load the engine.
_PACKAGES = ("aio", "jobs", "otel", "spark", "sqlite")
_HOMES = {
    "Database": "reef.database",
    "connect": "reef.database",
    "CreateOnly": "reef.engine",
    "Equals": "reef.engine",
    "Incoming": "reef.documents",
    "MustExist": "reef.engine",
    "Receipt": "reef.engine",
}

__all__ = [
    "CreateOnly",
    "Database",
    "Equals",
    "Incoming",
    "MustExist",
    "Receipt",
    "connect",
    *_errors,
]


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _PACKAGES:
        return import_module(f"reef.{name}")
    raise AttributeError(f"module 'reef' has no attribute {name!r}")
