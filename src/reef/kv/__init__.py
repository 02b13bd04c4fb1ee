"""The key-value face: bytes to bytes, ordered, versioned."""

from reef.kv._key_value import KeyValue
from reef.kv._rows import FACE, binary_column
from reef.kv._views import KeyValueSnapshot, KeyValueView

__all__ = ["FACE", "KeyValue", "KeyValueSnapshot", "KeyValueView", "binary_column"]
