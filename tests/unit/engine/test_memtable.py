"""Rows in memory: versions, order, and readers beside the one who writes."""

from __future__ import annotations

import random
import sys
import threading
from collections import deque
from collections.abc import Iterator

import pyarrow as pa
import pytest

from reef.engine._memtable._memtable import Memtable
from reef.engine._memtable._memtable_rows import Chunk
from reef.errors import InvariantError
from reef.format import SegmentOptions, log_schema, segment_schema
from reef.segment import RowSource, RowVersion, lookup, merge
from reef.types import LSN_MAX
from tests.support.engine.versions import (
    VALUE,
    History,
    log_batch,
    newest,
    ordered,
    rows_of,
    told,
    visible,
)
from tests.support.format.samples import sample_segment


def filled(*batches: dict[bytes, bytes | None]) -> tuple[Memtable, History]:
    """Return a memtable with batches of versions 10, 20, 30..., and the same as a plain history."""
    memtable, history = Memtable(), History()
    for number, batch in enumerate(batches, start=1):
        memtable.apply(10 * number, log_batch(batch))
        note(history, 10 * number, batch)
    return memtable, history


def note(history: History, lsn: int, batch: dict[bytes, bytes | None]) -> None:
    for key, value in batch.items():
        history.setdefault(key, {})[lsn] = value


def scan(memtable: Memtable, lsn: int = LSN_MAX, **asked: object) -> list[tuple[object, ...]]:
    """Return the live rows that a merge of the memtable alone shows."""
    arguments = {"start": b"", "end": None, "columns": None, "reverse": False, **asked}
    return rows_of(merge([memtable], lsn=lsn, **arguments))  # type: ignore[arg-type]


def check(memtable: Memtable, history: History, lsns: Iterator[int] | range | list[int]) -> None:
    """Compare every read with the history."""
    for lsn in lsns:
        for key in [*history, b"absent"]:
            assert told(memtable.get(key, lsn)) == newest(history, key, lsn)
        for reverse in (False, True):
            assert scan(memtable, lsn, reverse=reverse) == visible(history, lsn, reverse=reverse)


def test_it_is_a_source_of_rows() -> None:
    source: RowSource = Memtable()
    assert source.lsn_min > source.lsn_max
    assert lookup([source], b"a", 100) is None
    assert list(source.batches(b"", None, columns=None, reverse=False, lsn=100)) == []


def test_reads_at_every_version() -> None:
    memtable, history = filled(
        {b"a": b"a1", b"b": b"b1"}, {b"b": None, b"c": b""}, {}, {b"a": b"a4"}, {b"b": b"b5", b"": b"e"}
    )  # fmt: skip
    check(memtable, history, range(60))
    assert (memtable.lsn_min, memtable.lsn_max, memtable.rows) == (10, 50, 7)
    assert memtable.get_many([b"c", b"x", b"a"], 30) == [
        memtable.get(b"c", 30), None, memtable.get(b"a", 30)
    ]  # fmt: skip


def test_versions_only_rise_and_a_key_is_once_in_a_batch() -> None:
    memtable, history = filled({b"a": b"1"}, {b"a": b"2"})
    for lsn in (20, 19, 0):
        with pytest.raises(InvariantError, match="after 20"):
            memtable.apply(lsn, log_batch({b"b": b"x"}))
    twice = pa.concat_batches([log_batch({b"b": b"x"}), log_batch({b"b": b"y"})])
    with pytest.raises(InvariantError, match="twice"):
        memtable.apply(30, twice)
    check(memtable, history, [10, 20, 30])


def test_ranges_and_columns() -> None:
    memtable, history = filled({b"k%02d" % n: b"%d" % n for n in range(50)}, {b"k07": None})
    for start, end in ((b"", None), (b"k05", b"k09"), (b"k", b"k"), (b"k49", None), (b"l", None)):
        for reverse in (False, True):
            found = scan(memtable, start=start, end=end, reverse=reverse)
            assert found == visible(history, 100, start, end, reverse=reverse)
    (batch,) = memtable.batches(b"k07", b"k08", columns=["nope"], reverse=False, lsn=100)
    assert batch.schema == segment_schema([])
    assert rows_of([batch]) == [(b"k07", 20, True)]


def batch_of(
    rows: dict[bytes, dict[str, object]], columns: dict[str, pa.DataType]
) -> pa.RecordBatch:
    fields = [pa.field(name, kind) for name, kind in columns.items()]
    arrays = [pa.array([row.get(f.name) for row in rows.values()], f.type) for f in fields]
    system = [pa.array(list(rows), pa.binary()), pa.array([False] * len(rows))]
    return pa.record_batch([*system, *arrays], schema=log_schema(fields))


def test_columns_that_a_batch_lacks_are_null() -> None:
    memtable = Memtable()
    memtable.apply(1, batch_of({b"a": {"x": 1}, b"c": {"x": 3}}, {"x": pa.int32()}))
    memtable.apply(
        2, batch_of({b"b": {"y": "B", "x": 1 << 40}}, {"y": pa.string(), "x": pa.int64()})
    )
    memtable.apply(3, batch_of({b"d": {"y": "D"}}, {"y": pa.string()}))
    (batch,) = memtable.batches(b"", None, columns=None, reverse=False, lsn=9)
    assert batch.select(["_key", "_lsn", "x", "y"]).to_pydict() == {
        "_key": [b"a", b"b", b"c", b"d"],
        "_lsn": [1, 2, 1, 3],
        "x": [1, 1 << 40, 3, None],
        "y": [None, "B", None, "D"],
    }
    assert [f.name for f in memtable.columns] == ["x", "y"]
    (batch,) = memtable.batches(b"", b"c", columns=["y", "x"], reverse=True, lsn=9)
    assert batch.to_pydict() == {
        "_key": [b"b", b"a"], "_lsn": [2, 1], "_tombstone": [False, False],
        "y": ["B", None], "x": [1 << 40, 1],
    }  # fmt: skip
    (batch,) = memtable.flush_batches(9, [pa.field("z", pa.bool_()), pa.field("y", pa.string())])
    assert batch.schema.names == ["_key", "_lsn", "_tombstone", "z", "y"]
    assert batch.column("z").null_count == 4


def test_small_batches_of_different_columns_are_not_joined_with_each_other() -> None:
    memtable = Memtable()
    for lsn in range(1, 201):
        name = "even" if lsn // 40 % 2 == 0 else "odd"
        memtable.apply(lsn, batch_of({b"%03d" % lsn: {name: lsn}}, {name: pa.int64()}))
    (batch,) = memtable.batches(b"", None, columns=["even", "odd"], reverse=False, lsn=LSN_MAX)
    for lsn, row in enumerate(batch.to_pylist(), start=1):
        assert (row["even"], row["odd"]) == ((lsn, None) if lsn // 40 % 2 == 0 else (None, lsn))


def test_new_columns_are_seen_though_the_first_batch_of_them_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    memtable, both = Memtable(), {"x": pa.int64(), "y": pa.int64()}
    memtable.apply(1, batch_of({b"a": {"x": 1}}, {"x": pa.int64()}))
    monkeypatch.setattr("reef.engine._memtable._memtable_rows.union", interrupted)
    with pytest.raises(KeyboardInterrupt):
        memtable.apply(2, batch_of({b"b": {"y": 2}}, both))
    memtable.truncate(1)
    for lsn in range(2, 40):  # enough of them to be joined
        memtable.apply(lsn, batch_of({b"b": {"y": lsn}}, both))
    assert [f.name for f in memtable.columns] == ["x", "y"]
    (batch,) = memtable.batches(b"", None, columns=None, reverse=False, lsn=2)
    assert batch.select(["x", "y"]).to_pydict() == {"x": [1, None], "y": [None, 2]}


def test_a_batch_that_was_interrupted_is_not_joined_with_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memtable, history = filled(*({b"%02d" % n: b"old"} for n in range(10)))
    rows = memtable._state.rows
    bases, chunks = rows.table
    monkeypatch.setattr(rows, "table", (bases, InterruptedList(chunks)))
    with pytest.raises(KeyboardInterrupt):
        memtable.apply(110, log_batch({b"99": b"lost"}))
    memtable.truncate(100)
    many: dict[bytes, bytes | None] = {b"%02d" % n: b"new" for n in range(20)}
    memtable.apply(120, log_batch(many))  # larger: those before are joined
    note(history, 120, many)
    check(memtable, history, [50, 100, 120])


class InterruptedList(list[Chunk]):
    """Is interrupted right after it took an entry."""

    def append(self, chunk: Chunk) -> None:
        super().append(chunk)
        raise KeyboardInterrupt


def random_batches(seed: int, count: int, keys: int) -> list[dict[bytes, bytes | None]]:
    """Return batches of one row mostly, and of hundreds now and then."""
    rng = random.Random(seed)
    batches: list[dict[bytes, bytes | None]] = []
    for number in range(count):
        rows = rng.choice([1] * 30 + [2, 20, 300])
        chosen = [b"key-%05d" % rng.randrange(keys) for _ in range(rows)]
        batches.append(
            {k: None if rng.random() < 0.1 else b"%s of %d" % (k, number) for k in chosen}
        )
    return batches


def test_small_batches_are_joined_behind_the_scenes() -> None:
    batches = random_batches(1, 3000, 2000)
    memtable, history = Memtable(), History()
    early: list[tuple[RowVersion | None, tuple[int, bytes | None] | None]] = []
    for number, batch in enumerate(batches, start=1):
        memtable.apply(number, log_batch(batch))
        note(history, number, batch)
        key = next(iter(batch))
        early.append((memtable.get(key, number), newest(history, key, number)))
    # What a reader was given earlier is as it was, and everything is found where it is now.
    assert all(told(found) == expected for found, expected in early)
    rng = random.Random(2)
    for _ in range(5000):
        key, lsn = b"key-%05d" % rng.randrange(2000), rng.randrange(3001)
        assert told(memtable.get(key, lsn)) == newest(history, key, lsn)
    for lsn in (1, 1500, 3000):
        assert scan(memtable, lsn) == visible(history, lsn)
    _, chunks = memtable._state.rows.table
    assert len(chunks) < 100


def test_what_it_takes_is_what_it_says() -> None:
    """By measurement, Arrow takes more than 2 KiB for a batch of one row with three columns."""
    memtable = Memtable()
    empty = memtable.nbytes
    memtable.apply(1, log_batch({b"key-0000000": bytes(100)}))
    assert 2048 + 100 < memtable.nbytes - empty < 8192
    for lsn in range(2, 5001):
        memtable.apply(lsn, log_batch({b"key-%07d" % lsn: bytes(100)}))
    # Joined, a row takes its bytes, its place in the index and little else.
    a_row = (memtable.nbytes - empty) / 5000
    assert 100 + 11 + 73 < a_row < 500
    before = memtable.nbytes
    assert len(scan(memtable)) == 5000
    assert memtable.nbytes - before >= 5000 * (11 + 8)  # the sorted run
    memtable.truncate(10)
    assert memtable.nbytes < before / 5


def test_great_batches_are_left_as_they_are() -> None:
    memtable = Memtable()
    batches = [
        log_batch({b"%04d" % (n * 40 + i): bytes(40_000) for i in range(40)}) for n in range(20)
    ]
    for lsn, batch in enumerate(batches, start=1):
        memtable.apply(lsn, batch)
    for lsn, batch in enumerate(batches, start=1):
        found = memtable.get(b"%04d" % (lsn * 40 - 1), 100)
        assert found is not None
        assert found.batch is batch


def test_truncate_brings_back_what_was_before() -> None:
    history: History = {}
    memtable = Memtable()
    for number, batch in enumerate(random_batches(3, 400, 150), start=1):
        memtable.apply(number, log_batch(batch))
        note(history, number, batch)
    for lsn in (400, 399, 250, 100, 17, 1, 0):
        assert scan(memtable) == visible(history, LSN_MAX)  # sorts it all: it is cut, too
        memtable.truncate(lsn)
        for versions in history.values():
            for version in [v for v in versions if v > lsn]:
                del versions[version]
        check(memtable, history, [lsn // 2, lsn, LSN_MAX])
        assert memtable.rows == sum(map(len, history.values()))
        assert memtable.lsn_max == max((max(v) for v in history.values() if v), default=0)
    assert memtable.lsn_min > memtable.lsn_max
    assert rows_of(memtable.flush_batches(LSN_MAX)) == []


def test_after_truncate_the_versions_may_be_given_again() -> None:
    memtable, history = filled({b"a": b"1"}, {b"a": b"2", b"b": b"2"}, {b"c": b"3"})
    memtable.truncate(15)
    memtable.apply(20, log_batch({b"b": b"again"}))
    assert told(memtable.get(b"a", 20)) == (10, b"1")
    assert told(memtable.get(b"b", 20)) == (20, b"again")
    assert memtable.get(b"c", 100) is None
    with pytest.raises(InvariantError):
        memtable.apply(20, log_batch({b"b": b"x"}))
    assert history[b"a"][10] == b"1"


def test_truncate_changes_nothing_that_a_reader_has_taken() -> None:
    memtable, _ = filled({b"a": b"1"}, {b"a": b"2", b"b": b"2"})
    index, rows, _ = memtable._state
    before = dict(index)
    memtable.truncate(10)
    memtable.apply(20, log_batch({b"b": b"x", b"c": b"x", b"d": b"x"}))
    assert index == before
    assert rows.count == 3


def test_a_scan_that_has_begun_goes_on_through_a_truncate() -> None:
    rows: dict[bytes, bytes | None] = {b"%06d" % n: b"old" for n in range(5000)}
    memtable, history = filled(rows, dict.fromkeys(rows, b"new"))
    for reverse in (False, True):
        begun = memtable.batches(b"", None, columns=None, reverse=reverse, lsn=10)
        first = next(begun)
        memtable.truncate(10)
        found = [(key, lsn, value) for key, lsn, _, value in rows_of([first, *begun])]
        assert found == visible(history, 10, reverse=reverse)
        memtable.apply(20, log_batch(dict.fromkeys(rows, b"new")))


def test_without_through_makes_another_one() -> None:
    batches = random_batches(4, 500, 150)
    memtable, history = Memtable(), History()
    for number, batch in enumerate(batches, start=1):
        memtable.apply(number, log_batch(batch))
        note(history, number, batch)
    for lsn in (1, 100, 257, 499):
        fresh = memtable.without_through(lsn)
        rest = {
            k: {v: x for v, x in versions.items() if v > lsn} for k, versions in history.items()
        }
        check(fresh, rest, [lsn, lsn + 1, 400, LSN_MAX])
        assert fresh.rows == sum(map(len, rest.values()))
        assert fresh.lsn_min == min(v for versions in rest.values() for v in versions)
        assert fresh.lsn_max == 500
        fresh.apply(501, log_batch({b"key-00001": b"later"}))
        assert told(fresh.get(b"key-00001", LSN_MAX)) == (501, b"later")
        assert fresh.rows + sum(len(v) for v in history.values()) - memtable.rows == 1 + sum(
            map(len, rest.values())
        )
    check(memtable, history, [250, LSN_MAX])


def test_without_through_everything_is_empty_and_takes_only_later_versions() -> None:
    memtable, _ = filled({b"a": b"1"}, {b"a": b"2"})
    fresh = memtable.without_through(25)
    assert (fresh.rows, fresh.get(b"a", LSN_MAX)) == (0, None)
    assert memtable.rows == 2
    with pytest.raises(InvariantError):
        fresh.apply(25, log_batch({b"a": b"x"}))
    fresh.apply(26, log_batch({b"a": b"3"}))
    assert told(fresh.get(b"a", LSN_MAX)) == (26, b"3")
    assert fresh.without_through(5) is fresh


def test_flush_gives_every_version_in_the_order_of_segments() -> None:
    batches = random_batches(5, 600, 200)
    memtable, history = Memtable(), History()
    for number, batch in enumerate(batches, start=1):
        memtable.apply(number, log_batch(batch))
        note(history, number, batch)
    for lsn in (1, 300, 600, LSN_MAX):
        found = list(memtable.flush_batches(lsn))
        expected = [(key, v) for key, v in ordered(history) if v <= lsn]
        assert [(row[0], row[1]) for row in rows_of(found)] == expected
        assert all(row[3] == history[row[0]][row[1]] for row in rows_of(found))  # type: ignore[index]
        _, ref = sample_segment(
            pa.concat_batches(found), SegmentOptions()
        )  # which checks the order
        assert ref.rows == len(expected)
    assert list(memtable.flush_batches(0)) == []


def test_flush_comes_in_bounded_pieces_of_one_schema() -> None:
    memtable = Memtable()
    for lsn in range(1, 31):  # some long rows among many short ones
        memtable.apply(lsn, log_batch({b"%04d-long" % (lsn * 7): bytes(1 << 20)}))
    memtable.apply(31, log_batch({b"%04d" % n: bytes(500) for n in range(1000)}))
    found = list(memtable.flush_batches(LSN_MAX))
    assert sum(batch.num_rows for batch in found) == 1030
    assert max(batch.nbytes for batch in found) < 6 << 20
    assert {str(batch.schema) for batch in found} == {str(segment_schema([VALUE]))}


def test_a_key_with_very_many_versions() -> None:
    memtable = Memtable()
    for lsn in range(1, 20_001):
        memtable.apply(lsn, log_batch({b"hot": b"%d" % lsn}))
    memtable.apply(20_001, log_batch({b"cold": b"c"}))
    for lsn in (1, 2, 31, 32, 33, 9_999, 19_000, 19_968, 19_969, 20_000, LSN_MAX):
        assert told(memtable.get(b"hot", lsn)) == (min(lsn, 20_000), b"%d" % min(lsn, 20_000))
        assert [row[:2] for row in scan(memtable, lsn)][-1] == (b"hot", min(lsn, 20_000))
    assert memtable.get(b"hot", 0) is None
    assert sum(batch.num_rows for batch in memtable.flush_batches(LSN_MAX)) == 20_001


@pytest.mark.slow
def test_a_scan_sorts_what_is_new_and_no_more() -> None:
    rng = random.Random(7)
    memtable, history = filled({b"%08d" % rng.randrange(10**8): b"x" for _ in range(20_000)})
    assert len(scan(memtable)) == len(history)
    (great,) = memtable._state.runs._runs
    for lsn in range(100, 400):
        key = b"%08d" % rng.randrange(10**8)
        memtable.apply(lsn, log_batch({key: b"y"}))
        note(history, lsn, {key: b"y"})
        assert scan(memtable, start=key[:3], end=key[:3] + b"\xff") == visible(
            history, lsn, key[:3], key[:3] + b"\xff"
        )
        runs = memtable._state.runs._runs
        assert runs[0] is great
        assert len(runs) < 10
    assert scan(memtable) == visible(history, LSN_MAX)


@pytest.mark.slow
def test_scans_of_many_windows() -> None:
    rng = random.Random(8)
    batches: list[dict[bytes, bytes | None]] = [
        {b"%08d" % rng.randrange(10**8): b"%d" % n for _ in range(4000)} for n in range(12)
    ]
    batches.append({b"%08d" % rng.randrange(10**8): b"hot" for _ in range(3)})
    memtable, history = filled(*batches)
    for start, end in ((b"", None), (b"3", b"7"), (b"00000001", b"99999998")):
        for reverse in (False, True):
            found = scan(memtable, start=start, end=end, reverse=reverse)
            assert found == visible(history, LSN_MAX, start, end, reverse=reverse)


READS = 100


class Race:
    """A writer and readers of one memtable who give way to each other as often as Python lets them.

    Of version n, the writer puts value n under the keys n % 7, n % 11 and n % 13, so that each reader
    knows what it must see at any version.
    """

    def __init__(self, versions: int) -> None:
        self.memtable = Memtable()
        self.versions = versions
        self.published = 0
        self.problems: list[str] = []
        self.reads = 0
        self.is_over = False

    def write(self) -> None:
        lsn = 0
        # On a busy machine the readers come late.
        while lsn < self.versions or (self.reads < READS and lsn < 20 * self.versions):
            lsn += 1
            keys = {b"a%02d" % (lsn % 7), b"b%02d" % (lsn % 11), b"c%02d" % (lsn % 13)}
            if lsn % 50 == 0:  # versions that fail, and are cut off and given again
                self.memtable.apply(lsn, log_batch(dict.fromkeys(keys, b"void")))
                self.memtable.truncate(self.published)
            self.memtable.apply(lsn, log_batch(dict.fromkeys(keys, b"%d" % lsn)))
            self.published = lsn

    def read(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self.is_over and not self.problems:
            lsn = self.published - (rng.randrange(40) if rng.random() < 0.5 else 0)
            if lsn < 20:
                continue
            letter, period = rng.choice([(b"a", 7), (b"b", 11), (b"c", 13)])
            expected = {
                b"%s%02d" % (letter, v % period): v for v in range(lsn - period + 1, lsn + 1)
            }
            key = rng.choice(list(expected))
            if told(self.memtable.get(key, lsn)) != (expected[key], b"%d" % expected[key]):
                self.problems.append(f"get {key!r} at {lsn}: {told(self.memtable.get(key, lsn))}")
            if rng.random() < 0.2:
                reverse = rng.random() < 0.5
                found = scan(
                    self.memtable, lsn, start=letter, end=letter + b"\xff", reverse=reverse
                )
                wanted = [(k, v, b"%d" % v) for k, v in sorted(expected.items(), reverse=reverse)]
                if found != wanted:
                    self.problems.append(f"scan at {lsn}: {found} instead of {wanted}")
            if rng.random() < 0.01:
                rows = rows_of(self.memtable.flush_batches(lsn))
                if len(rows) != 3 * lsn or rows != sorted(rows, key=lambda row: (row[0], -row[1])):  # type: ignore[operator]
                    self.problems.append(f"flush at {lsn}: {len(rows)} rows")
            self.reads += 1


@pytest.mark.slow
def test_readers_need_no_lock_beside_the_writer() -> None:
    race = Race(6000)

    def reader(seed: int) -> None:
        try:
            race.read(seed)
        except Exception as error:  # noqa: BLE001
            race.problems.append(repr(error))

    readers = [threading.Thread(target=reader, args=(seed,)) for seed in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in readers:
            thread.start()
        race.write()
    finally:
        race.is_over = True
        for thread in readers:
            thread.join()
        sys.setswitchinterval(interval)
    assert race.problems == []
    assert race.reads >= READS


# Large batches, whose keys are indexed when somebody looks.

MANY = [b"%05d" % i for i in range(1000)]


def large(value: bytes, keys: list[bytes] = MANY) -> pa.RecordBatch:
    columns = [pa.array(keys, pa.binary()), pa.array([False] * len(keys))]
    values = pa.array([value * 400] * len(keys), pa.binary())
    return pa.RecordBatch.from_arrays([*columns, values], schema=log_schema([VALUE]))


def test_a_large_batch_that_is_cut_off_gives_back_what_was_before() -> None:
    memtable = Memtable()
    memtable.apply(1, large(b"o", MANY[:3]))
    memtable.apply(2, large(b"x"))
    memtable.truncate(1)
    assert [found and found.lsn for found in memtable.get_many(MANY[:4], 2)] == [1, 1, 1, None]


def test_large_batches_keep_no_way_to_versions_that_were_folded() -> None:
    memtable = Memtable()
    memtable.apply(1, large(b"a"))
    memtable.apply(2, large(b"b", [b"other"]))
    memtable.apply(3, large(b"c", MANY[:990]))
    assert memtable.get(MANY[0], 2) is not None  # all of them are indexed now
    fresh = memtable.without_through(1)
    assert fresh.get(MANY[0], 2) is None
    assert [found and found.lsn for found in fresh.get_many([MANY[0], b"other"], 3)] == [3, 2]


def test_indexing_that_was_interrupted_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    memtable = Memtable()
    memtable.apply(1, large(b"a"))
    memtable.apply(2, large(b"b"))
    first = memtable._unindexed[0]
    monkeypatch.setattr(memtable, "_unindexed", Interrupted([first, memtable._unindexed[1]]))
    with pytest.raises(KeyboardInterrupt):
        memtable.get(MANY[0], 2)
    assert [found and found.lsn for found in memtable.get_many(MANY[:2], 2)] == [2, 2]
    assert [found and found.lsn for found in memtable.get_many(MANY[:2], 1)] == [1, 1]
    memtable.truncate(1)
    assert [found and found.lsn for found in memtable.get_many(MANY[:2], 2)] == [1, 1]


class Interrupted(deque[int]):
    """Is interrupted when it is to forget its first entry, once."""

    is_over = False

    def popleft(self) -> int:
        if not self.is_over:
            self.is_over = True
            raise KeyboardInterrupt
        return super().popleft()
