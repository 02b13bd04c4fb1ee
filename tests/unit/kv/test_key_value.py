"""The key-value face: what it takes, what it refuses and in which words, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reef
from reef.engine import CreateOnly, Equals, plain_codes
from reef.errors import ConditionFailedError, IdempotencyError, InvalidInputError
from reef.kv import KeyValue
from reef.kv._key_value_rows import digest_of, one_delete, one_put, rows_of
from reef.types import KEY_BYTES_MAX

TABLE = pa.table({"key": [b"a", b"b"], "value": [b"1", b"2"]})
CHUNKED = pa.table(
    {"key": pa.chunked_array([[b"a"], [b"b"]]), "value": pa.chunked_array([[b"1"], [b"2"]])}
)
AS_TEXT = pa.table(
    {"value": pa.array(["1", "2"]), "key": pa.array(["a", "b"], pa.large_string()), "more": [1, 2]}
)


@pytest.fixture
def kv() -> Iterator[KeyValue]:
    with reef.connect("memory://") as db, db.kv("app") as kv:
        yield kv


@pytest.mark.parametrize(
    "puts",
    [
        {b"a": b"1", b"b": bytearray(b"2")},
        {memoryview(b"a"): memoryview(b"1"), b"b": b"2"},
        TABLE,
        TABLE.to_batches()[0],
        CHUNKED,
        AS_TEXT,
    ],
)
def test_puts_are_taken_in_every_form(kv: KeyValue, puts: Any) -> None:
    kv.write(puts)
    assert list(kv.items()) == [(b"a", b"1"), (b"b", b"2")]


def test_one_key_at_a_time_is_the_same_as_a_batch(kv: KeyValue) -> None:
    assert kv.put(bytearray(b"a"), memoryview(b"1")).outcomes == ("written",)
    assert kv.put(b"", b"").outcomes == ("written",)
    assert kv.delete(b"a").outcomes == ("deleted",)
    assert kv.delete(b"never was").outcomes == ("deleted",)
    receipt = kv.write({b"b": b"2", b"c": b"3"}, [b""])
    assert receipt.outcomes == ("written", "written", "deleted")
    assert receipt.applied == 3
    assert list(kv.items()) == [(b"b", b"2"), (b"c", b"3")]
    assert kv.get_many([b"c", b"a", b"b", b"c"]) == [b"3", None, b"2", b"3"]


def test_a_caller_may_change_its_memory_after_a_write(kv: KeyValue) -> None:
    key, value = bytearray(b"key"), bytearray(b"value")
    kv.put(key, value)
    kv.write({memoryview(b"other"): value})
    key[:], value[:] = b"xxx", b"xxxxx"
    assert dict(kv.items()) == {b"key": b"value", b"other": b"value"}


LONG = b"k" * (KEY_BYTES_MAX + 1)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda kv: kv.put("a", b"1"), "key = 'a': expected bytes, got str; encode text yourself"),
        (lambda kv: kv.put(b"a", 1), "value = 1: expected bytes, got int"),
        (lambda kv: kv.put(LONG, b"1"), "has 4097 bytes: expected at most 4096"),
        (lambda kv: kv.delete(LONG), "has 4097 bytes: expected at most 4096"),
        (lambda kv: kv.write(), "nothing to write: give puts or deletes"),
        (lambda kv: kv.write({}, []), "nothing to write: give puts or deletes"),
        (lambda kv: kv.write({b"a": "1"}), "value = '1': expected bytes"),
        (lambda kv: kv.write({b"a": b"1"}, [b"a"]), "key b'a' appears more than once"),
        (lambda kv: kv.write({LONG: b"1"}), "has 4097 bytes: expected at most 4096"),
        (lambda kv: kv.write(deletes=b"a"), "deletes = b'a': expected a list of keys"),
        (lambda kv: kv.write([b"a"]), "puts is of type list: expected a mapping"),
        (lambda kv: kv.write(TABLE.select(["key"])), "expected a table with the columns key and"),
        (
            lambda kv: kv.write(pa.table({"key": [b"a", None], "value": [b"1", b"2"]})),
            "column 'key' has a null: give bytes in every row",
        ),
        (
            lambda kv: kv.write(pa.table({"key": [1], "value": [b"1"]})),
            "column 'key' is of type int64: expected a binary column",
        ),
        (
            lambda kv: kv.put(b"a", b"1", condition=Equals(other=b"1")),
            "the condition compares 'other', which keys and values do not have",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_words_that_help(
    kv: KeyValue, write: Callable[[KeyValue], object], message: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        write(kv)
    assert message in str(caught.value)
    assert list(kv.items()) == []


def test_a_condition_holds_for_every_row_or_row_by_row(kv: KeyValue) -> None:
    kv.put(b"a", b"1")
    with pytest.raises(ConditionFailedError) as caught:
        kv.write({b"a": b"2", b"b": b"2"}, condition=CreateOnly())
    assert caught.value.outcomes == ("exists", "not applied")
    assert list(kv.items()) == [(b"a", b"1")]
    receipt = kv.write({b"a": b"2", b"b": b"2"}, condition=CreateOnly(), atomic=False)
    assert receipt.outcomes == ("exists", "written")
    assert kv.put(b"a", b"3", condition=Equals(value=b"1")).outcomes == ("written",)
    with pytest.raises(ConditionFailedError):
        kv.delete(b"a", condition=Equals(value=b"1"))
    assert list(kv.items()) == [(b"a", b"3"), (b"b", b"2")]


def test_a_request_is_told_from_another_by_all_that_it_says(kv: KeyValue) -> None:
    first = kv.put(b"a", b"1", idempotency_key="once")
    again = kv.put(b"a", b"1", idempotency_key="once")
    assert again == first
    assert again.replayed
    for other in (
        lambda: kv.put(b"a", b"2", idempotency_key="once"),
        lambda: kv.delete(b"a", idempotency_key="once"),
        lambda: kv.put(b"a", b"1", idempotency_key="once", condition=CreateOnly()),
        lambda: kv.write({b"a": b"1", b"b": b""}, idempotency_key="once"),
    ):
        with pytest.raises(IdempotencyError):
            other()
    assert list(kv.items()) == [(b"a", b"1")]


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_one_row_is_what_a_batch_of_one_is(key: bytes, value: bytes) -> None:
    put, delete = one_put(key, value).batch, one_delete(key)
    assert put == rows_of({key: value}, None)
    assert delete == rows_of(None, [key])
    for rows in (put, delete):
        rows.validate(full=True)
    assert digest_of(put) != digest_of(delete)


def test_the_codes_that_the_face_gives_are_those_of_its_rows(
    kv: KeyValue, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, given_codes = kv._writing(), []
    write = writer.write

    def compared(request: Any) -> Any:
        given_codes.append((request.codes, plain_codes(request.batch)))
        return write(request)

    monkeypatch.setattr(writer, "write", compared)
    kv.put(b"a", b"1")
    kv.delete(b"a")
    kv.put(b"a", b"1", condition=CreateOnly())
    assert given_codes == [(b"\0", b"\0"), (b"\1", b"\1"), (b"\0", b"\0")]
