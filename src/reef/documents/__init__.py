"""Documents: typed attributes, vectors and free-form JSON under an id, on the kernel.

Documents              an open namespace: upsert, patch, delete, get, query, sql, alter, ...
DocumentView           the same reads at one version; DocumentSnapshot holds one
DocumentReceipt        the result of a commit
Incoming               in a condition: the value of the document that comes in
FACE                   what the face asks of a namespace
page_version           the version that a page token continues at
types, input, filter, query
                       sub-packages: what Spark and the command line share with this face
"""

from reef.documents._document_receipt import DocumentReceipt
from reef.documents._document_view import DocumentSnapshot, DocumentView
from reef.documents._documents import Documents
from reef.documents._namespace_schema import FACE
from reef.documents.filter import Incoming
from reef.documents.query import page_version

__all__ = [
    "FACE",
    "DocumentReceipt",
    "DocumentSnapshot",
    "DocumentView",
    "Documents",
    "Incoming",
    "page_version",
]
