"""Reading from several sources at once."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from reef.errors import InvalidInputError, InvariantError
from reef.format import segment_schema
from reef.segment import RowVersion, lookup, lookup_many, merge
from tests.support.call_counts import calls_of
from tests.support.engine.versions import (
    VALUE,
    ArraySource,
    History,
    rows_of,
    scan,
    segment_batch,
    told,
    visible,
)


class BatchSource:
    """A RowSource of ready-made batches in their order, for one direction."""

    def __init__(self, *given: pa.RecordBatch) -> None:
        self.given = given
        keys = [key for batch in given for key in batch.column(0).to_pylist()]
        lsns = [lsn for batch in given for lsn in batch.column(1).to_pylist()]
        self.key_min, self.key_max = min(keys), max(keys)
        self.lsn_min, self.lsn_max = min(lsns), max(lsns)

    def get(self, key: bytes, lsn: int) -> RowVersion | None:
        raise NotImplementedError

    def get_many(self, keys: Sequence[bytes], lsn: int) -> list[RowVersion | None]:
        raise NotImplementedError

    def batches(
        self,
        start: bytes,
        end: bytes | None,
        *,
        columns: Sequence[str] | None,
        reverse: bool,
        lsn: int,
    ) -> Iterator[pa.RecordBatch]:
        for batch in self.given:
            names = batch.schema.names
            wanted = names[3:] if columns is None else [c for c in columns if c in names]
            yield batch.select([*names[:3], *wanted])


def put(lsn: int, *numbers: int) -> History:
    """Return a history of keys by number, all of one version."""
    return {b"k%04d" % n: {lsn: b"%d at %d" % (n, lsn)} for n in numbers}


def together(*histories: History) -> History:
    whole: History = {}
    for history in histories:
        for key, versions in history.items():
            whole[key] = {**whole.get(key, {}), **versions}
    return whole


NEW: History = {b"a": {9: b"a9"}, b"c": {8: None}, b"e": {9: b"e9", 7: None}}
OLD: History = {b"a": {3: b"a3"}, b"b": {2: b"b2"}, b"c": {1: b"c1"}, b"e": {3: b"e3"}}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("rows_per_batch", [1, 2, 100])
@pytest.mark.parametrize("lsn", [0, 1, 3, 7, 8, 9, 100])
def test_the_newest_visible_version_of_each_key_wins(
    lsn: int, rows_per_batch: int, reverse: bool
) -> None:
    sources = [ArraySource(NEW, rows_per_batch), ArraySource(OLD, rows_per_batch)]
    for start, end in ((b"", None), (b"b", b"e"), (b"aa", b"ab"), (b"c", None), (b"", b"a")):
        found = rows_of(scan(*sources, start=start, end=end, lsn=lsn, reverse=reverse))
        assert found == visible(together(NEW, OLD), lsn, start, end, reverse=reverse)


def test_nothing_comes_of_nothing() -> None:
    assert list(scan()) == []
    assert list(scan(ArraySource({b"a": {1: None}}))) == []


def test_the_columns_are_the_key_the_version_and_those_asked_for() -> None:
    assert next(scan(ArraySource(OLD))).schema.names == ["_key", "_lsn", "value"]
    assert next(scan(ArraySource(OLD), columns=[])).schema.names == ["_key", "_lsn"]
    with pytest.raises(InvalidInputError, match="each once"):
        next(scan(ArraySource(OLD), columns=["value", "value"]))


def test_rows_of_one_source_that_are_all_visible_are_not_copied() -> None:
    history = put(3, *range(100))
    batch = segment_batch(history, [(key, 3) for key in sorted(history)])
    out = list(scan(BatchSource(batch)))
    assert [b.column("value").buffers()[2].address for b in out] == [
        batch.column("value").buffers()[2].address
    ]
    assert rows_of(out) == visible(history, 100)


def test_where_ranges_follow_upon_each_other_rows_are_not_copied_either() -> None:
    low, high = put(3, *range(100)), put(5, *range(100, 200))
    batches = [
        segment_batch(history, [(key, lsn) for key in sorted(history)])
        for history, lsn in ((low, 3), (high, 5))
    ]
    out = list(scan(BatchSource(batches[1]), BatchSource(batches[0])))
    assert [b.column("value").buffers()[2].address for b in out] == [
        batch.column("value").buffers()[2].address for batch in batches
    ]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_source_is_not_asked_before_its_keys_are_reached(reverse: bool) -> None:
    histories = [put(9 - i, *range(10 * i, 10 * i + 10)) for i in range(5)]
    sources = [ArraySource(history, 10) for history in histories]
    given = scan(*sources, reverse=reverse)
    inorder = sources[::-1] if reverse else sources
    for opened, source in enumerate(inorder, start=1):
        next(given)
        assert source.batches_given == 1
        assert [other.batches_given for other in inorder[opened:]] == [0] * (5 - opened)
    assert next(given, None) is None


def test_sources_outside_the_range_or_above_the_version_are_not_asked() -> None:
    low, high, late = ArraySource(put(1, 1)), ArraySource(put(2, 9)), ArraySource(put(50, 5))
    assert list(scan(late, high, low, start=b"k0002", end=b"k0009", lsn=49)) == []
    assert [source.batches_given for source in (low, high, late)] == [0, 0, 0]


@pytest.mark.parametrize("reverse", [False, True])
def test_the_same_version_in_two_sources_comes_once(reverse: bool) -> None:
    # A segment that was just flushed, beside the memtable that still holds the rows.
    flushed: History = together(put(3, *range(20)), put(5, *range(10, 20)))
    memory = together(flushed, put(7, *range(5, 25)))
    found = rows_of(scan(ArraySource(memory, 4), ArraySource(flushed, 7), reverse=reverse))
    assert found == visible(memory, 100, reverse=reverse)


@pytest.mark.parametrize("reverse", [False, True])
def test_sources_whose_versions_overlap(reverse: bool) -> None:
    # A memtable of versions 1 to 9, and a segment that was attached to the log at 5.
    memory: History = together(put(1, *range(30)), put(9, *range(10, 20)))
    attached = put(5, *range(5, 25))
    for lsn in (1, 4, 5, 8, 9):
        found = rows_of(
            scan(ArraySource(memory, 4), ArraySource(attached, 7), lsn=lsn, reverse=reverse)
        )
        assert found == visible(together(memory, attached), lsn, reverse=reverse)


class LongHistory:
    """A source of one key with very many versions, made as they are asked for."""

    key_min = key_max = b"k"
    lsn_min = 1
    rows, batch_count = 64, 200

    def __init__(self, lsn_max: int) -> None:
        self.lsn_max = lsn_max
        self.allocated_most = 0

    def get(self, key: bytes, lsn: int) -> RowVersion | None:
        raise NotImplementedError

    def get_many(self, keys: Sequence[bytes], lsn: int) -> list[RowVersion | None]:
        raise NotImplementedError

    def batches(self, *_: object, **__: object) -> Iterator[pa.RecordBatch]:
        for number in range(self.batch_count):
            first = self.lsn_max - 2 * number * self.rows
            lsns = range(first, first - 2 * self.rows, -2)
            self.allocated_most = max(self.allocated_most, pa.total_allocated_bytes())
            yield pa.record_batch(
                [
                    pa.array([b"k"] * self.rows, pa.binary()),
                    pa.array(lsns, pa.int64()),
                    pa.array([False] * self.rows),
                    pa.array([b"%08d" % lsn * 512 for lsn in lsns], pa.binary()),
                ],
                schema=segment_schema([VALUE]),
            )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("asked", [100_000, 90_001, 80_000, 74_999])
def test_very_many_versions_of_a_key_take_bounded_memory(asked: int, reverse: bool) -> None:
    # 100 MiB of them altogether, in turns from two sources.
    even, odd = LongHistory(100_000), LongHistory(99_999)
    before = pa.total_allocated_bytes()
    (batch,) = list(
        merge([even, odd], start=b"", end=None, lsn=asked, columns=None, reverse=reverse)
    )
    assert rows_of([batch]) == [(b"k", asked, b"%08d" % asked * 512)]
    assert max(even.allocated_most, odd.allocated_most) - before < 8 << 20


def small_sources(
    count: int, rows: int, keys: int, rows_per_batch: int = 1000
) -> list[ArraySource]:
    """Sources of a few rows each, all of them between the others'; the newest comes first."""
    choose = random.Random(count)
    return [
        ArraySource(put(lsn, *choose.sample(range(keys), rows)), rows_per_batch)
        for lsn in range(count, 0, -1)
    ]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("rows_per_batch", [1, 4, 100])
def test_many_small_sources_show_the_newest_too(
    rows_per_batch: int, reverse: bool, ordered: bool
) -> None:
    sources = small_sources(60, 30, 400, rows_per_batch)
    whole = together(*(source.history for source in sources))
    for lsn in (60, 31, 1):
        found = rows_of(scan(*sources, lsn=lsn, reverse=reverse, ordered=ordered))
        expected = visible(whole, lsn, reverse=reverse)
        assert found == expected if ordered else sorted(found) == sorted(expected)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("rows", "rows_per_batch"), [(5, 5), (100, 20)])
def test_a_merge_costs_what_its_rows_do_however_many_sources_have_them(
    rows: int, rows_per_batch: int, reverse: bool, ordered: bool
) -> None:
    def work(count: int) -> int:
        sources = small_sources(count, rows, 100 * count, rows_per_batch)
        return calls_of(lambda: list(scan(*sources, lsn=999, reverse=reverse, ordered=ordered)))

    work(10)  # what is done once
    few, many = work(50), work(200)
    assert many < 6 * few


def test_reading_the_first_rows_does_not_open_all_sources() -> None:
    wide = ArraySource(put(1, *range(1000)), 1000)
    small = [ArraySource(put(2 + i, 10 * i + 5), 10) for i in range(90)]
    given = scan(*small[::-1], wide)
    assert next(given).num_rows == 5
    assert sum(source.batches_given for source in small) == 0
    next(given)
    assert sum(source.batches_given for source in small) < 10
    assert 5 + sum(batch.num_rows for batch in given) < 1000


def test_batches_are_about_as_long_as_asked() -> None:
    history: History = {b"k%04d" % n: {3: bytes(1000)} for n in range(2000)}
    other: History = {b"k%04d" % n: {2: bytes(1000)} for n in range(1, 2000, 2)}
    for sources in ([history], [history, other]):
        found = list(scan(*(ArraySource(source, 700) for source in sources), batch_bytes=100_000))
        assert sum(batch.num_rows for batch in found) == 2000
        assert max(batch.nbytes for batch in found) < 160_000
        assert len(found) < 40


@pytest.mark.parametrize("rows_per_batch", [1, 3, 40])
@pytest.mark.parametrize("lsn", [0, 4, 5, 7, 100])
def test_without_order_small_batches_are_joined_and_the_newest_still_wins(
    lsn: int, rows_per_batch: int
) -> None:
    many: History = {key: {4: b"old", **versions} for key, versions in put(5, *range(100)).items()}
    other = together(put(7, *range(50, 150, 2)), {b"k0099": {7: None}})
    found = rows_of(
        scan(
            ArraySource(other, rows_per_batch),
            ArraySource(many, rows_per_batch),
            lsn=lsn,
            ordered=False,
        )
    )
    assert sorted(found) == sorted(visible(together(many, other), lsn))


def test_without_order_batches_are_joined_up_to_a_size() -> None:
    history = put(3, *range(64))

    def counts(ordered: bool, batch_bytes: int) -> list[int]:
        source = ArraySource(history, 2)
        given = list(scan(source, ordered=ordered, batch_bytes=batch_bytes))
        assert rows_of(given) == visible(history, 100)
        return [batch.num_rows for batch in given]

    assert counts(True, 1 << 20) == [2] * 32
    assert counts(False, 1 << 20) == [32, 32]  # no more than 16 of them
    assert counts(False, 1) == [2] * 32


def test_columns_that_change_within_a_source_are_not_joined() -> None:
    added = rows(3, [b"c"], value=pa.array([b"3"], VALUE.type), more=pa.array([3]))
    plain = rows(3, [b"a"], value=pa.array([b"1"], VALUE.type))
    given = pa.Table.from_batches(
        [batch.select(["_key"]) for batch in scan(BatchSource(plain, added), ordered=False)]
    )
    assert given.column("_key").to_pylist() == [b"a", b"c"]


def rows(lsn: int, keys: list[bytes], **columns: pa.Array) -> pa.RecordBatch:
    fields = [pa.field(name, column.type) for name, column in columns.items()]
    return pa.record_batch(
        [
            pa.array(keys, pa.binary()),
            pa.array([lsn] * len(keys), pa.int64()),
            pa.array([False] * len(keys)),
            *columns.values(),
        ],
        schema=segment_schema(fields),
    )


def test_a_column_that_was_added_later_is_null_in_older_rows() -> None:
    new = rows(9, [b"b", b"d"], name=pa.array(["B", "D"]), size=pa.array([2, 4]))
    old = rows(3, [b"a", b"b", b"c"], name=pa.array(["a", "b", "c"]))
    for sources in ([BatchSource(new), BatchSource(old)], [BatchSource(old), BatchSource(new)]):
        table = pa.concat_tables(
            [pa.table(batch) for batch in scan(*sources)], promote_options="default"
        )
        assert table.to_pydict() == {
            "_key": [b"a", b"b", b"c", b"d"],
            "_lsn": [3, 9, 3, 9],
            "name": ["a", "B", "c", "D"],
            "size": [None, 2, None, 4],
        }


def test_with_the_schema_of_the_namespace_every_batch_has_its_columns() -> None:
    new = rows(9, [b"m"], name=pa.array(["M"]), size=pa.array([2]))
    old = rows(3, [b"a", b"z"], name=pa.array(["a", "z"]))
    schema = pa.schema([("size", pa.int64()), ("name", pa.string()), ("more", pa.bool_())])
    sources = [BatchSource(new), BatchSource(old)]
    table = pa.Table.from_batches(scan(*sources, schema=schema))
    assert table.schema.names == ["_key", "_lsn", "size", "name", "more"]
    assert table.column("size").to_pylist() == [None, 2, None]
    assert table.column("more").to_pylist() == [None] * 3
    table = pa.Table.from_batches(scan(*sources, schema=schema, columns=["more", "name"]))
    assert table.schema.names == ["_key", "_lsn", "more", "name"]
    with pytest.raises(InvalidInputError, match="nope"):
        next(scan(*sources, schema=schema, columns=["nope"]))


def test_a_column_has_the_type_of_its_newest_source() -> None:
    new = rows(9, [b"b"], size=pa.array([1 << 40], pa.int64()))
    old = rows(3, [b"a", b"c"], size=pa.array([1, 3], pa.int32()))
    table = pa.Table.from_batches(
        scan(BatchSource(new), BatchSource(old), schema=pa.schema([("size", pa.int64())]))
    )
    assert table.column("size").to_pylist() == [1, 1 << 40, 3]
    odd = rows(3, [b"a", b"c"], size=pa.array(["x", "y"]))
    with pytest.raises(InvariantError, match="'size' of type string"):
        list(scan(BatchSource(new), BatchSource(odd)))


def test_a_column_has_the_type_of_its_newest_source_in_whatever_order_they_come() -> None:
    small, large = pa.array([1], pa.int32()), pa.array([1 << 40], pa.int64())
    # The middle one is of another type than the newest and the oldest, which are alike.
    for keys in ((b"c", b"b", b"a"), (b"a", b"b", b"c"), (b"b", b"a", b"c"), (b"b", b"c", b"a")):
        newest = rows(9, [keys[0], b"z"], size=pa.concat_arrays([large, large]))
        middle = rows(6, [keys[1], b"z"], size=pa.concat_arrays([small, small]))
        oldest = rows(3, [keys[2], b"z"], size=pa.concat_arrays([large, large]))
        *_, last = scan(BatchSource(newest), BatchSource(middle), BatchSource(oldest))
        assert last.column("_key").to_pylist()[-1:] == [b"z"]
        assert last.schema.field("size").type == pa.int64()


def test_lookup_takes_the_newest_version_at_or_below_the_lsn() -> None:
    sources = [ArraySource(NEW), ArraySource(OLD)]
    for lsn in range(11):
        for key in (b"a", b"b", b"c", b"d", b"e"):
            expected = max(
                (version for version in together(NEW, OLD).get(key, {}) if version <= lsn),
                default=None,
            )
            found = lookup(sources, key, lsn)
            assert (found and found.lsn) == expected
    assert told(lookup(sources, b"e", 7)) == (7, None)


def test_lookup_stops_as_soon_as_no_other_source_can_be_newer() -> None:
    first, second, third = (
        ArraySource(put(9, 1, 2)),
        ArraySource(put(5, 1)),
        ArraySource(put(2, 1, 2)),
    )
    assert told(lookup([first, second, third], b"k0001", 100)) == (9, b"1 at 9")
    assert (second.asked, third.asked) == ([], [])


def test_lookup_goes_on_while_another_source_may_be_newer() -> None:
    # Versions overlap: the first source's newest is not of this key.
    memory = ArraySource(together(put(1, 1), put(9, 2)))
    attached = ArraySource(put(5, 1))
    assert told(lookup([memory, attached], b"k0001", 100)) == (5, b"1 at 5")
    assert told(lookup([memory, attached], b"k0001", 4)) == (1, b"1 at 1")


def test_lookup_asks_no_source_that_cannot_have_the_key() -> None:
    late, low, high = ArraySource(put(50, 5)), ArraySource(put(9, 1)), ArraySource(put(3, 8))
    assert lookup([late, low, high], b"k0005", 49) is None
    assert [source.asked for source in (late, low, high)] == [[], [], []]
    assert lookup([], b"k", 1) is None


def test_lookup_many_asks_each_source_once_for_what_is_open() -> None:
    first, second = ArraySource(put(9, 1, 2)), ArraySource(put(5, 1, 2, 3, 7))
    keys = [b"k0003", b"k0001", b"k0005", b"k0002", b"k0001"]
    found = lookup_many([first, second], keys, 100)
    assert [told(f) for f in found] == [
        (5, b"3 at 5"), (9, b"1 at 9"), None, (9, b"2 at 9"), (9, b"1 at 9")
    ]  # fmt: skip
    assert first.asked == [b"k0001", b"k0002", b"k0001"]
    assert second.asked == [b"k0003", b"k0005"]
    assert lookup_many([first, second], [], 100) == []


def test_lookup_many_where_versions_overlap() -> None:
    memory = ArraySource(together(put(1, 1), put(9, 2)))
    attached = ArraySource(put(5, 1, 2))
    found = lookup_many([memory, attached], [b"k0001", b"k0002"], 100)
    assert [told(f) for f in found] == [(5, b"1 at 5"), (9, b"2 at 9")]
