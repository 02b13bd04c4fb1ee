"""Reef: a database engine whose only durable state is a bucket."""

from reef.errors import *  # noqa: F403
from reef.errors import __all__ as __all__

__version__ = "0.1.0.dev0"
