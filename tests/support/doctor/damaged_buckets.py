"""Buckets on a local disk, made through the key-value face, and ways to damage them."""

from __future__ import annotations

import random
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

import reef
from reef.engine import Context
from reef.format import (
    KEY,
    LSN,
    Manifest,
    SegmentOptions,
    SegmentOrigin,
    SegmentRef,
    segment_schema,
)
from reef.kv import FACE, KeyValue
from reef.manifest import Head, open_compactor, replace_segments, retained_points
from reef.segment import keep_versions, write_segment
from reef.types import LSN_MAX, new_ulid, unpack_lsn
from tests.support.engine.collecting import collect_garbage

NAMESPACE = "stock"
SORTED_ROWS = [(b"a", 5), (b"b", 9), (b"b", 4), (b"c", 6)]


class Commit(NamedTuple):
    """What was written, and in which slot."""

    slot: int
    puts: dict[bytes, bytes]
    deletes: list[bytes]
    idempotency_key: str


class Bucket:
    """A bucket with one namespace, and what that must hold."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.root = root
        self.url = f"file://{root}?fsync=off"
        self.settings: dict[str, object] = {"flush_interval": 0, **settings}
        self.commits: list[Commit] = []
        self._rng = random.Random(7)

    def open(self) -> reef.Database:
        return reef.connect(self.url, **self.settings)

    def context(self) -> Context:
        return self.open().context()

    def write(self, *rounds: str, commits: int = 4) -> None:
        """Open for writing and do some rounds; what one has committed is flushed if it says "flush".

        Nobody closes it, as if it had been killed.
        """
        kv = self.open().kv(NAMESPACE)
        for end in rounds:
            for _ in range(commits):
                self._commit(kv)
            if end == "flush":
                kv.flush()

    def _commit(self, kv: KeyValue) -> None:
        rng, known = self._rng, self.rows()
        first = rng.randrange(500)
        puts = {b"k%03d" % (first + i): b"v%d" % rng.getrandbits(60) for i in range(0, 60, 3)}
        deletes = [k for k in rng.sample(sorted(known), min(4, len(known))) if k not in puts]
        name = f"request-{rng.getrandbits(60)}"
        lsn = kv.write(puts, deletes, idempotency_key=name).lsn
        self.commits.append(Commit(unpack_lsn(lsn)[0], puts, deletes, name))

    def rows(self, without: Collection[int] = ()) -> dict[bytes, bytes]:
        """Return what the namespace must hold, without what was written in some slots."""
        rows: dict[bytes, bytes] = {}
        for commit in self.commits:
            if commit.slot not in without:
                rows.update(commit.puts)
                for key in commit.deletes:
                    rows.pop(key, None)
        return rows

    def read(self) -> dict[bytes, bytes]:
        """Return what a fresh reader sees."""
        with self.open() as db, db.kv(NAMESPACE, mode="r") as kv:
            return dict(kv.items())

    def read_as_writer(self) -> dict[bytes, bytes]:
        """Return what a fresh writer sees that has committed and flushed something first."""
        kv = self.open().kv(NAMESPACE)
        kv.put(b"proof", b"it can be written")
        kv.flush()
        found = dict(kv.items())
        assert found.pop(b"proof") == b"it can be written"
        kv.delete(b"proof")
        return found

    def compact(self, *, last: int = 0) -> SegmentRef:
        """Merge all segments, or the `last` ones, as a compaction does; return what replaces them."""
        context = self.context()
        chain = context.chain(NAMESPACE)
        manifest = chain.publish(lambda head: open_compactor(_manifest(head))).manifest
        inputs = manifest.segments[-last:]
        points = retained_points(manifest)
        table = self._table(context, inputs)
        origin = SegmentOrigin(
            id=new_ulid(context.clock, context.rng),
            namespace=NAMESPACE,
            level=1,
            author="test",
            created_at_us=context.clock.now_us(),
            replaced_segments=tuple(ref.id for ref in inputs),
        )
        kept = keep_versions(
            table, floor_lsn=max(ref.lsn_max for ref in inputs), points=points, is_bottom=True
        )
        options = SegmentOptions(codec="zstd", row_block_bytes=context.settings.row_block_bytes)
        output = write_segment(context.store, NAMESPACE, table.schema, origin, options, kept)
        chain.publish(
            lambda head: replace_segments(
                _manifest(head),
                compactor_epoch=manifest.compactor_epoch,
                intent=None,
                inputs=inputs,
                outputs=[output],
                known_points=points,
            )
        )
        return output

    def collect(self) -> None:
        """Flush, and let collection remove all that it may: the log, and older generations.

        For a bucket with `gc_grace=0` and `retained_generations=1`.
        """
        self.open().kv(NAMESPACE).flush()
        for _ in range(5):
            context = self.context()
            report = collect_garbage(context, NAMESPACE)
            if not report.deleted:
                break

    @staticmethod
    def _table(context: Context, refs: Collection[SegmentRef]) -> pa.Table:
        """Return all versions of some segments, sorted."""
        reader = context.segments(NAMESPACE)
        table = pa.Table.from_batches(
            batch
            for ref in refs
            for batch in reader.open(ref).batches(
                b"", None, columns=None, reverse=False, lsn=LSN_MAX
            )
        )
        return table.take(pc.sort_indices(table, [(KEY, "ascending"), (LSN, "descending")]))

    @property
    def manifest(self) -> Manifest:
        return _manifest(self.context().chain(NAMESPACE).load())

    # Files.

    def files(self, folder: str) -> list[Path]:
        return sorted((self.root / "namespaces" / NAMESPACE / folder).glob("*"))

    def slot(self, number: int) -> Path:
        return self.root / f"namespaces/{NAMESPACE}/wal/{number:020d}.wal"

    def generation(self, number: int) -> Path:
        return self.root / f"namespaces/{NAMESPACE}/manifest/{number:020d}.manifest.json"

    def segment(self, ref: SegmentRef) -> Path:
        return self.root / f"namespaces/{NAMESPACE}/segments/{ref.id}.seg"

    def key(self, path: Path) -> str:
        return str(path.relative_to(self.root))

    def everything(self) -> dict[str, bytes]:
        """Return every object with its bytes."""
        paths = (path for path in sorted(self.root.rglob("*")) if path.is_file())
        return {self.key(path): path.read_bytes() for path in paths}


def make_bucket(folder: Path, **settings: object) -> Bucket:
    """Return one with segments of several blocks, a log that is folded, and some that is not."""
    bucket = Bucket(folder / "b", row_block_bytes=500, **settings)
    bucket.write("flush", "flush", "leave")
    return bucket


def flip(path: Path, at: int | None = None) -> None:
    """Flip the bits of one byte, by default the one in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 0xFF
    path.write_bytes(data)


def cut(path: Path, by: int = 1) -> None:
    """Cut a file short."""
    path.write_bytes(path.read_bytes()[:-by])


def _manifest(head: Head | None) -> Manifest:
    assert head is not None
    return head.manifest


def publish_rows(bucket: Bucket, rows: list[tuple[bytes, int]], block_bytes: int = 1 << 20) -> None:
    """Write a segment of `rows` as they come, and name it in the next generation."""
    context = bucket.context()
    schema = segment_schema(list(FACE.schema))
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([key for key, _ in rows], pa.binary()),
            pa.array([lsn for _, lsn in rows], pa.int64()),
            pa.array([False] * len(rows)),
            pa.array([b"v%d" % lsn for _, lsn in rows], pa.binary()),
        ],
        schema=schema,
    )
    origin = SegmentOrigin(
        id=new_ulid(context.clock, context.rng),
        namespace=NAMESPACE,
        level=0,
        author="test",
        created_at_us=0,
    )
    options = SegmentOptions(row_block_bytes=block_bytes)
    ref = write_segment(context.store, NAMESPACE, schema, origin, options, [batch])

    def named(manifest: Manifest) -> Manifest:
        return msgspec.structs.replace(manifest, segments=(*manifest.segments, ref))

    context.chain(NAMESPACE).publish(lambda head: None if head is None else named(head.manifest))
