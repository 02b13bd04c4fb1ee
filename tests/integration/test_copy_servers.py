"""Copies between kinds of stores, on the real servers, while writes go on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import reef
from reef.doctor import verify
from reef.jobs import CompactionOptions, compact, copy_namespace

pytestmark = pytest.mark.servers

ROUTES = [("file", "seaweedfs"), ("seaweedfs", "azurite"), ("azurite", "file")]


@pytest.fixture
def fresh_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    def fresh(store: str) -> str:
        if store == "file":
            return (tmp_path / "bucket").as_uri()
        url: str = request.getfixturevalue(store).fresh_url()
        return url

    return fresh


@pytest.mark.parametrize(("origin", "place"), ROUTES)
def test_a_live_namespace_is_copied_and_copied_back(
    fresh_url: Callable[[str], str], origin: str, place: str, tmp_path: Path
) -> None:
    with (
        reef.connect(fresh_url(origin)) as source,
        reef.connect(fresh_url(place)) as target,
        reef.connect(tmp_path / "back") as back,
    ):
        kv = source.kv("ns")
        written: list[int] = []
        turn = threading.Lock()

        def write(_: object = None) -> None:
            """Write a key; called after each object that was copied, too."""
            with turn:
                written.append(kv.put(b"%06d" % len(written), b"x" * 500).lsn)
                if len(written) % 5 == 0:
                    kv.flush()

        for _ in range(12):
            write()
        results = []
        for _ in range(2):
            before = len(written)
            results.append(copy_namespace(source.context(), target.context(), "ns", watch=write))
            assert len(written) > before
            compact(source, ["ns"], options=CompactionOptions(full=True))
        # A copy is a prefix of what was written.
        with target.kv("ns", mode="r") as copied:
            assert copied.lsn == results[-1].lsn
            assert [key for key, _ in copied.items()] == [
                b"%06d" % n for n, lsn in enumerate(written) if lsn <= copied.lsn
            ]
        last = copy_namespace(source.context(), target.context(), "ns")
        assert verify(target.context(), "ns", deep=True).problems == ()
        restored = copy_namespace(target.context(), back.context(), "ns")
        assert restored.lsn == last.lsn == written[-1]
        with back.kv("ns") as again:
            assert len([*again.items()]) == len(written)
            assert again.put(b"more", b"1").lsn > restored.lsn
        kv.close()
