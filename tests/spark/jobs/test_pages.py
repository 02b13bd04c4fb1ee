"""Pages on Spark: deltas folded into an image by the pipeline's own passes."""

from __future__ import annotations

import random
from pathlib import Path

from pyspark.sql import SparkSession

import reef
from reef.database import Database
from reef.format import SegmentRef
from reef.jobs import CompactionOptions, compact, index, verify
from reef.jobs import detach as detach_branch
from reef.pages import Pages, PageView
from reef.spark import spark_runner

SIZE = 512
PAGES = 300


def held(view: Pages | PageView, lsn: int | None = None) -> dict[int, bytes]:
    where = view.at(lsn=lsn) if isinstance(view, Pages) and lsn is not None else view
    found = zip(range(PAGES), where.get_pages(range(PAGES)), strict=True)
    return {page: data for page, data in found if data is not None}


def test_deltas_become_an_image_and_a_branch_its_own(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(7)
    model: dict[int, bytes] = {}
    versions: dict[int, dict[int, bytes]] = {}
    with reef.connect(f"file://{tmp_path}/bucket?fsync=off", row_block_bytes=4096) as db:
        pages = db.pages("app.db", page_size=SIZE)
        for turn in range(8):
            some = {rng.randrange(PAGES): rng.randbytes(SIZE) for _ in range(120)}
            model |= some
            versions[pages.write(some)] = dict(model)
            if turn == 3:
                pages.branch("dev")
            if turn % 2:
                pages.flush()
        branched = versions[sorted(versions)[3]]
        dev = db.pages("app.db", branch="dev")
        dev.write({0: b"d" * SIZE})

        runner = spark_runner(db.context(), spark)
        assert index(db, runner=runner).failed == ()
        options = CompactionOptions(full=True, target_size_bytes=32 << 10)
        merged = compact(db, runner=runner, options=options)
        assert {record.namespace: record.state for record in merged.records} == {
            "app.db": "done",
            "app.db@dev": "done",
        }
        found = verify(db, runner=runner).namespaces
        assert [one.result.problems for one in found if one.result is not None] == [(), ()]

        detach_branch(db, "app.db@dev", runner=runner)
        assert {ref.namespace for ref in dev_segments(db)} == {""}

    with reef.connect(f"file://{tmp_path}/bucket?fsync=off") as db:
        pages = db.pages("app.db", mode="r")
        assert held(pages) == model
        for lsn, then in versions.items():  # seven days of them can be read
            assert held(pages, lsn) == then
        assert held(db.pages("app.db", branch="dev", mode="r")) == branched | {0: b"d" * SIZE}


def dev_segments(db: Database) -> tuple[SegmentRef, ...]:
    head = db.context().chain("app.db@dev").load()
    assert head is not None
    return head.manifest.segments
