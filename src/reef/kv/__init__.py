"""The key-value face: bytes to bytes, ordered, versioned.

KeyValue           an open namespace: put, get, delete, write, items, ...
KeyValueView       the same reads at one version; KeyValueSnapshot holds one
FACE               what the face asks of a namespace
binary_column      keys or values of a request as one column
"""

from reef.kv._key_value import KeyValue
from reef.kv._key_value_rows import FACE, binary_column
from reef.kv._key_value_views import KeyValueSnapshot, KeyValueView

__all__ = ["FACE", "KeyValue", "KeyValueSnapshot", "KeyValueView", "binary_column"]
