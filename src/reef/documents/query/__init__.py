"""Reads of documents: scans, queries, orders, pages, vector search, aggregates and SQL.

StoredRows          rows as they are stored, at one version: all, or those that pass a filter
run_query, Query    the rows that a query asks for
run_search, Distance, vector_attribute
                    those nearest to a vector, by a metric, in an attribute
read_page, page_version
                    page tokens
Order, OrderBy      attributes to order by, then the id
Selection, wide_of  the attributes that are asked for; those in blocks of their own
Aggregation, Aggregates
                    aggregates and their groups
run_sql, explain_sql
                    one SELECT over the table `docs`, on DuckDB; what was pushed down, and the plan
matching_documents  the documents that match a filter, in no order
frame_of_pandas, frame_of_polars
                    results as frames
"""

from reef.documents.query._aggregate import Aggregates, Aggregation
from reef.documents.query._distance import Distance
from reef.documents.query._frames import frame_of_pandas, frame_of_polars
from reef.documents.query._matching import matching_documents
from reef.documents.query._page import page_version, read_page
from reef.documents.query._query import Query, run_query
from reef.documents.query._row_order import Order, OrderBy
from reef.documents.query._search import run_search, vector_attribute
from reef.documents.query._selection import Selection, wide_of
from reef.documents.query._sql import explain_sql, run_sql
from reef.documents.query._stored_rows import StoredRows

__all__ = [
    "Aggregates",
    "Aggregation",
    "Distance",
    "Order",
    "OrderBy",
    "Query",
    "Selection",
    "StoredRows",
    "explain_sql",
    "frame_of_pandas",
    "frame_of_polars",
    "matching_documents",
    "page_version",
    "read_page",
    "run_query",
    "run_search",
    "run_sql",
    "vector_attribute",
    "wide_of",
]
