"""Reads of documents: scans, queries, orders, pages, vector search, aggregates and SQL."""

from reef.documents.query._aggregate import Aggregates, Aggregation
from reef.documents.query._frames import frame_of_pandas, frame_of_polars
from reef.documents.query._matching import found_by, prune_by
from reef.documents.query._order import Order, OrderBy
from reef.documents.query._page import after_lsn, read_page
from reef.documents.query._query import Query, run_query, run_search
from reef.documents.query._selection import Selection, wide_of
from reef.documents.query._sql import explain_sql, run_sql
from reef.documents.query._stored_rows import StoredRows

__all__ = [
    "Aggregates",
    "Aggregation",
    "Order",
    "OrderBy",
    "Query",
    "Selection",
    "StoredRows",
    "after_lsn",
    "explain_sql",
    "found_by",
    "frame_of_pandas",
    "frame_of_polars",
    "prune_by",
    "read_page",
    "run_query",
    "run_search",
    "run_sql",
    "wide_of",
]
