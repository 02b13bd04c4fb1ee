"""Documents: typed attributes, vectors and free-form JSON under an id, on the kernel.

Documents              an open namespace: upsert, patch, delete, get, query, sql, alter, ...
DocumentView           the same reads at one version; DocumentSnapshot holds one
DocumentReceipt        what a commit tells
Incoming               in a condition: the value of the document that comes in
"""

from reef.documents._documents import FACE, Documents
from reef.documents._request import DocumentReceipt
from reef.documents._snapshot import DocumentSnapshot
from reef.documents._view import DocumentView, after_lsn
from reef.documents.filter import Incoming

__all__ = [
    "FACE",
    "DocumentReceipt",
    "DocumentSnapshot",
    "DocumentView",
    "Documents",
    "Incoming",
    "after_lsn",
]
