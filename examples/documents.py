"""A tour of documents: on a `file://` bucket in a temporary folder, in a few seconds.

python examples/documents.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

import reef
from reef.documents import Documents

KINDS = ("fruit", "tool", "book", "toy")
COUNT = 20_000
rng = np.random.default_rng(7)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with reef.connect(Path(folder).as_uri()) as db, db.namespace("products") as ns:
            write(ns)
            read(ns)
            search(ns)
            count_and_sum(ns)
            write_on_condition(ns)
            change_the_schema(ns)
            travel_in_time(ns)
        open_anew(Path(folder).as_uri())


def chapter(title: str) -> None:
    print(f"\n{title}\n{'-' * len(title)}")


def products(first: int, count: int) -> pa.Table:
    """Return made-up products, as an Arrow table."""
    numbers = np.arange(first, first + count)
    return pa.table(
        {
            "id": [f"product-{number:06}" for number in numbers],
            "kind": [KINDS[number % len(KINDS)] for number in numbers],
            "price": np.round(rng.uniform(1, 100, count), 2),
            "tags": [["new"] if number % 10 == 0 else [] for number in numbers],
            "vector": pa.FixedSizeListArray.from_arrays(
                pa.array(rng.standard_normal(count * 64, np.float32)), 64
            ),
        }
    )


def write(ns: Documents) -> None:
    chapter("1. Writing: a batch is one durable commit")
    for first in range(0, COUNT, 5_000):
        receipt = ns.upsert(products(first, 5_000))
        print(f"{receipt.upserted} documents at LSN {receipt.lsn}")
    print("schema, inferred:", ns.schema)
    try:
        ns.upsert([{"id": "fine", "price": 1.0}, {"id": "not", "price": "cheap"}])
    except reef.InvalidInputError as error:
        print("refused as a whole:", error)


def read(ns: Documents) -> None:
    chapter("2. Reading: by id, by filter, in an order, in pages")
    print(ns.get("product-000042", columns=["kind", "price", "tags"]))
    where = "kind = 'book' and price < 5 and tags contains 'new'"
    page = ns.query(where=where, order_by=("price", "desc"), limit=3, columns=["price"])
    print(f"{ns.count(where)} match {where}; the first three:", page.to_pylist())
    more = ns.query(where=where, order_by=("price", "desc"), limit=3, columns=["price"], after=page)
    print("the next page:", more.to_pylist())
    same = ("And", [("kind", "Eq", "book"), ("price", "Lt", 5), ("tags", "Contains", "new")])
    assert ns.count(same) == ns.count(where)


def search(ns: Documents) -> None:
    chapter("3. Exact vector search, with a filter")
    wanted = rng.standard_normal(64)
    near = ns.query(vector=wanted, metric="cosine", where="kind = 'toy'", limit=3, columns=["kind"])
    for found in near.to_pylist():
        print(found)


def count_and_sum(ns: Documents) -> None:
    chapter("4. Aggregates and SQL")
    totals = ns.aggregate({"n": "count", "dearest": ("max", "price")}, group_by="kind")
    print(totals.to_pylist())
    text = (
        "select kind, round(avg(price), 2) as mean from docs where price > ? group by 1 order by 1"
    )
    print(ns.sql(text, [50]).to_pylist())


def write_on_condition(ns: Documents) -> None:
    chapter("5. Conditions and retries")
    offers = [{"id": "product-000001", "price": 0.5}, {"id": "product-000002", "price": 1000.0}]
    receipt = ns.patch(offers, condition="price > incoming.price", atomic=False)
    print("only what gets cheaper:", receipt.outcomes)
    try:
        ns.upsert([{"id": "product-000001"}], condition=reef.CreateOnly())
    except reef.ConditionFailedError as error:
        print("create only:", error.outcomes)
    again = [ns.delete(["product-000003"], idempotency_key="request-1") for _ in range(2)]
    print("the same request twice:", [(one.lsn, one.replayed) for one in again])
    print("every tool is new:", ns.patch_where("kind = 'tool'", {"tags": ["new"]}).patched)


def change_the_schema(ns: Documents) -> None:
    chapter("6. The schema changes, the data stays where it is")
    print(ns.alter(add={"stock": "uint64"}, rename={"kind": "category"}, drop=["tags"]))
    print(ns.get("product-000042", columns=["category", "price"]))


def travel_in_time(ns: Documents) -> None:
    chapter("7. The past")
    with ns.snapshot("10m") as before:
        ns.delete_where("price > 10")
        print(f"now {ns.count()}, in the snapshot {before.count()}")
        print(
            "the dearest there:",
            before.query(order_by=("price", "desc"), limit=1, columns=["price"]).to_pylist(),
        )


def open_anew(url: str) -> None:
    chapter("8. A fresh connection goes on from the bucket alone")
    with reef.connect(url) as db, db.namespace("products") as ns:
        print(f"{ns.count()} documents are there")
        ns.upsert([{"id": "product-one-more", "price": 3.0}])
        with db.namespace("products", mode="r") as reader:
            print("a reader sees", reader.get("product-one-more"))


if __name__ == "__main__":
    main()
