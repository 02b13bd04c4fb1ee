"""Reads of documents at one version: by id, by ranges of ids, counts; against a plain dict."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pytest

from reef.documents._document_view import DocumentView
from reef.documents.query import _stored_rows, _wide
from reef.documents.types import documents_of
from reef.documents.types._schema import Schema
from reef.documents.types._type import Type
from reef.engine import Face, ReadState, open_for_reading
from reef.errors import InvalidInputError, InvariantError
from reef.store import open_store
from reef.testing import CountingStore
from tests.support.documents.document_rows import schema_of
from tests.support.documents.stored_documents import Namespace, busy_namespace, comparable
from tests.support.engine.open_database import database


@pytest.fixture(scope="module", params=range(3))
def namespace(request: pytest.FixtureRequest) -> Iterator[Namespace]:
    namespace = busy_namespace(request.param)
    yield namespace
    namespace.close()


def lsns(namespace: Namespace) -> list[int | None]:
    return [None, *random.Random(1).sample(sorted(namespace.versions), 6)]


def read(batches: Iterator[pa.RecordBatch], schema: Schema) -> list[dict]:
    return comparable([row for batch in batches for row in documents_of(batch, schema)])


def test_the_namespace_of_these_tests_is_as_untidy_as_it_should_be(namespace: Namespace) -> None:
    assert len(namespace.writer.manifest.segments) == 8
    assert namespace.writer.tail.memtable.rows > 0
    assert 0 < len(namespace.rows) < 170
    assert {"label", "grade", "sold"} <= set(namespace.schema.names)


def test_every_document_is_got_by_id_at_every_version(namespace: Namespace) -> None:
    for lsn in lsns(namespace):
        view, expected = namespace.view(lsn), namespace.documents(lsn)
        ids = [*(f"d{i:03}" for i in range(151)), "é3", "nobody", ""]
        wanted = [comparable(expected.get(id)) for id in ids]
        assert [comparable(view.get(id)) for id in ids] == wanted
        assert comparable(view.get_many(ids)) == wanted


def test_columns_that_are_asked_for_are_given_and_no_others(namespace: Namespace) -> None:
    view, expected = namespace.view(), namespace.documents()
    for columns in (["price", "label"], [], ["vector"], ["id", "terms"], ["half_vector", "made"]):
        names = {"id", *columns}
        for id, document in expected.items():
            wanted = comparable({n: v for n, v in document.items() if n in names})
            assert comparable(view.get(id, columns=columns)) == wanted
        found = list(view.scan(columns=columns))
        assert {tuple(batch.schema.names) for batch in found} == {
            ("id", *(name for name in columns if name != "id"))
        }
        many = view.get_many(list(expected), columns=columns)
        assert read(iter(found), namespace.schema) == comparable(many)


def test_a_scan_gives_every_document_once_in_order_of_ids(namespace: Namespace) -> None:
    for lsn in lsns(namespace):
        expected = comparable([*namespace.documents(lsn).values()])
        view = namespace.view(lsn)
        assert read(view.scan(), namespace.schema) == expected
        assert read(view.scan(reverse=True), namespace.schema) == expected[::-1]
        assert view.count() == len(expected)


def test_a_scan_begins_and_ends_where_it_is_told(namespace: Namespace) -> None:
    view, expected = namespace.view(), namespace.documents()
    for start, end in (("d050", None), (None, "d050"), ("d03", "d07"), ("d9", "d1"), ("é", None)):
        wanted = [
            comparable(document)
            for id, document in expected.items()
            if (start is None or id >= start) and (end is None or id < end)
        ]
        assert read(view.scan(start=start, end=end), namespace.schema) == wanted
        back = view.scan(start=start, end=end, reverse=True, where=("id", "NotEq", "nobody"))
        assert read(back, namespace.schema) == wanted[::-1]


def test_shown_types_are_those_of_the_schema(namespace: Namespace) -> None:
    batch = next(namespace.view().scan())
    assert batch.schema.field("id") == pa.field("id", pa.string(), nullable=False)
    for attribute in namespace.schema.attributes:
        assert batch.schema.field(attribute.name).type == attribute.type.logical
    assert batch.schema.field("token").type == pa.uuid()
    batch.validate(full=True)


def test_attributes_that_no_row_has_are_null() -> None:
    namespace = Namespace(schema_of(a="int64"))
    namespace.write([{"id": "x", "a": 1}])
    namespace.flush()
    kinds = {"b": "vector[3]", "c": "uuid", "d": "json", "e": "sparse", "f": "[]int64"}
    namespace.alter(namespace.schema.added({n: Type.parse(t) for n, t in kinds.items()}))
    assert namespace.view().get("x") == {"id": "x", "a": 1}
    table = namespace.view().query()
    assert [table[name].null_count for name in kinds] == [1] * 5
    assert namespace.view().query(where=("b", "IsNull"))["id"].to_pylist() == ["x"]
    namespace.close()


@pytest.mark.parametrize("form", [pa.array, lambda ids: pa.chunked_array([ids])])
def test_ids_may_come_as_a_column(namespace: Namespace, form: Callable[..., object]) -> None:
    view = namespace.view()
    for ids in (["d001", "no"], [f"d{i:03}" for i in range(300)]):
        found = view.get_many(form(ids), columns=["stock"])  # type: ignore[arg-type]
        assert found == view.get_many(ids, columns=["stock"])


def test_an_empty_namespace_is_empty_in_every_way() -> None:
    namespace = Namespace(Schema())
    view = namespace.view()
    assert (view.get("a"), view.get_many(["a"]), view.count()) == (None, [None], 0)
    assert list(view.scan()) == []
    assert view.query().schema.names == ["id"]
    assert view.query(where=("id", "Eq", "a"), limit=1).num_rows == 0
    namespace.close()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda view: view.get(1), "id = 1: expected the id of a document"),
        (lambda view: view.get(b"d001"), "the id of a document, which is text"),
        (lambda view: view.get("\ud800"), "text that UTF-8 can hold"),
        (lambda view: view.get("d001", columns=["cost"]), "the attributes are: "),
        (lambda view: view.get("d001", columns="price"), "a list of names of attributes"),
        (lambda view: view.get("d001", columns=5), "a list of names of attributes"),
        (lambda view: view.get_many("d001"), "a list of ids"),
        (lambda view: view.get_many(5), "a list of ids"),
        (lambda view: view.get_many(["d001", 5]), "id = 5: expected"),
        (lambda view: view.get_many(pa.array(["d001", None])), "id = None: expected"),
        (lambda view: view.scan(columns=["name"]), "there is no attribute 'name'"),
        (lambda view: view.scan(start=5), "start = 5: expected"),
        (lambda view: view.scan(where=("cost", "Eq", 1)), "there is no attribute 'cost'"),
        (lambda view: view.count(42), "filter = 42: expected"),
    ],
)
def test_what_cannot_be_asked_is_refused_at_once(
    namespace: Namespace, call: Callable[[DocumentView], object], message: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        call(namespace.view())
    assert message in str(refused.value)


# What is read.

DIMENSION = 256


@pytest.fixture(scope="module")
def cold() -> CountingStore:
    """A bucket of one segment: 4,000 documents in order of rank, with 4 MiB of vectors."""
    store = CountingStore(open_store("memory://"))
    kinds = {"rank": "int64", "vector": f"vector[{DIMENSION}]"}
    namespace = Namespace(schema_of(**kinds), store, row_block_bytes=4096)
    vectors = np.random.default_rng(1).random((4000, DIMENSION), np.float32)
    namespace.write(
        {"id": f"{i:05}", "rank": i, "vector": vector.tolist()} for i, vector in enumerate(vectors)
    )
    namespace.flush()
    namespace.close()
    return store


def opened(store: CountingStore) -> DocumentView:
    """Return a view that has nothing in memory yet."""
    schema = schema_of(rank="int64", vector=f"vector[{DIMENSION}]")
    reader = open_for_reading(database(store).context(), "ns", Face("documents", schema.to_arrow()))
    view = DocumentView(reader.view(), schema)
    store.reset()
    return view


def bytes_read(store: CountingStore) -> int:
    return sum(store.reset().bytes.values())


def test_counting_and_narrow_columns_read_no_vectors(cold: CountingStore) -> None:
    vectors = 4000 * DIMENSION * 4
    assert opened(cold).count() == 4000
    assert bytes_read(cold) < vectors // 10
    assert opened(cold).query(columns=["rank"], order_by=("rank", "desc")).num_rows == 4000
    assert bytes_read(cold) < vectors // 10
    assert opened(cold).get("00007", columns=["rank"]) == {"id": "00007", "rank": 7}
    assert bytes_read(cold) < vectors // 10
    assert opened(cold).query().num_rows == 4000
    assert bytes_read(cold) > vectors


def test_blocks_that_cannot_match_are_not_read(cold: CountingStore) -> None:
    view = opened(cold)
    assert view.count() == 4000
    everything = bytes_read(cold)
    view = opened(cold)
    assert view.query(where=("rank", "Lt", 3), columns=["rank"])["rank"].to_pylist() == [0, 1, 2]
    tail_and_a_block = bytes_read(cold)
    assert tail_and_a_block < everything * 0.8
    assert view.count(("rank", "Gt", 5000)) == 0
    assert view.count(("id", "Lt", "")) == 0
    assert bytes_read(cold) == 0


@pytest.mark.parametrize("most", [0, 32])
def test_vectors_are_read_for_the_rows_that_are_given_alone(
    cold: CountingStore, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(ReadState, "points_max", most)
    vectors = 4000 * DIMENSION * 4
    best = opened(cold).query(order_by=("rank", "desc"), limit=2)
    assert best["rank"].to_pylist() == [3999, 3998]
    assert None not in best["vector"].to_pylist()
    assert bytes_read(cold) < vectors // 2
    assert opened(cold).query(where=("rank", "Eq", 11)).num_rows == 1
    assert bytes_read(cold) < vectors // 2


def test_wide_values_come_in_pieces_of_bounded_size(
    cold: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stored_rows, "_PIECE_BYTES", 100 * DIMENSION * 4)
    view = opened(cold)
    sizes = [batch.num_rows for batch in view.scan(where=("rank", "Lt", 250))]
    assert sizes == [100, 100, 50]


@pytest.mark.parametrize("points_max", [0, 40])
def test_rows_that_are_not_there_any_more_are_never_taken_for_others(
    cold: CountingStore, monkeypatch: pytest.MonkeyPatch, points_max: int
) -> None:
    monkeypatch.setattr(ReadState, "points_max", points_max)
    view = opened(cold)._view
    layout = pa.schema([("_key", pa.binary()), ("_lsn", pa.int64()), ("a1", pa.int64())])
    with pytest.raises(InvariantError, match="of 2 rows that were found, 1 are still there"):
        _wide.rows_by_key(view, pa.array([b"00001", b"gone"], pa.binary()), layout, ())
    rows = pa.RecordBatch.from_arrays(
        [pa.array([b"%05d" % i for i in range(40)]), pa.array([1] * 40)], schema=layout.remove(2)
    )
    with pytest.raises(InvariantError, match="are of other versions now"):
        _wide.with_wide(view, rows, [pa.field("a2", pa.list_(pa.float32(), DIMENSION))])
