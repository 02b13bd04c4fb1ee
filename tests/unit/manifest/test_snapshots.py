"""Snapshots of a manifest last as long as was asked for: by the store's clock, not by the maker's."""

from __future__ import annotations

import random

import pytest
from typing_extensions import Buffer

from reef.errors import InvalidInputError, NotFoundError
from reef.format import Manifest
from reef.manifest import ManifestChain, create_snapshot, expire_snapshots, renew
from reef.settings import Settings
from reef.store import MemoryStore, Store
from reef.testing import Fault, FaultyStore, ManualClock, WrapperStore

HOUR_US = 3_600_000_000


def actor(store: Store, clock: ManualClock, author: str = "a") -> ManifestChain:
    return ManifestChain(
        store,
        "products",
        author=author,
        settings=Settings(),
        clock=clock,
        rng=random.Random(author),
    )


class TestSnapshotsByTheStoresClock:
    """Two clocks: the store's, and that of a machine which may be wrong."""

    def chain(
        self, here: ManualClock, there: ManualClock, store: Store | None = None
    ) -> ManifestChain:
        """Return a chain of a namespace that somebody else has made."""
        store = store or MemoryStore(clock=there)
        actor(store, here, "maker").publish(
            lambda head: Manifest.first("products", author="m", nonce="0" * 32, created_at_us=0)
        )
        return actor(store, here)

    def test_with_a_right_clock_it_is_one_publish(self) -> None:
        clock = ManualClock()
        chain = self.chain(clock, clock)
        head, snapshot = create_snapshot(chain, id="s", lsn=9, ttl_s=3600)
        assert (head.generation, snapshot.generation, snapshot.lsn) == (2, 2, 9)
        assert snapshot.expires_at_us == head.published_at_us + HOUR_US
        assert head.manifest.snapshots == (snapshot,)

    @pytest.mark.parametrize("ttl", [None, 0])
    def test_without_an_end(self, ttl: float | None) -> None:
        chain = self.chain(ManualClock(5), ManualClock())
        head, snapshot = create_snapshot(chain, id="s", lsn=9, ttl_s=ttl)
        assert (head.generation, snapshot.expires_at_us) == (2, 0)

    @pytest.mark.parametrize("off_s", [-86400, -7200, -3, 61, 86400])
    def test_a_wrong_clock_is_corrected_by_a_second_publish(self, off_s: int) -> None:
        there = ManualClock()
        here = ManualClock(there.now_us() + off_s * 1_000_000)
        chain = self.chain(here, there)
        head, snapshot = create_snapshot(chain, id="s", lsn=9, ttl_s=3600)
        assert head.generation == 3
        assert snapshot.generation == 2
        assert snapshot.expires_at_us == head.published_at_us + HOUR_US
        # From then on the store's time is known.
        head, snapshot = create_snapshot(chain, id="t", lsn=9, ttl_s=3600)
        assert head.generation == 4
        assert snapshot.expires_at_us == head.published_at_us + HOUR_US

    @pytest.mark.parametrize("off_s", [-1, 60])
    def test_a_little_is_not_worth_it(self, off_s: int) -> None:
        there = ManualClock()
        chain = self.chain(ManualClock(there.now_us() + off_s * 1_000_000), there)
        assert create_snapshot(chain, id="s", lsn=9, ttl_s=3600)[0].generation == 2

    def test_slow_puts_are_allowed_for(self) -> None:
        clock = ManualClock()
        faults = FaultyStore(MemoryStore(clock=clock), clock=clock)
        chain = self.chain(clock, clock, faults)
        faults.arm(Fault("stall", on="put_if_absent", seconds=20.0, times=0))
        head, snapshot = create_snapshot(chain, id="s", lsn=9, ttl_s=3600)
        assert head.generation == 3
        assert snapshot.expires_at_us >= head.published_at_us + HOUR_US

    def test_puts_that_grow_ever_slower_end_some_time(self) -> None:
        clock = ManualClock()
        faults = FaultyStore(MemoryStore(clock=clock), clock=clock)
        chain = self.chain(clock, clock, faults)
        for seconds in (10.0, 100.0, 1000.0, 10000.0):
            faults.arm(Fault("stall", on="put_if_absent", seconds=seconds))
        head, snapshot = create_snapshot(chain, id="s", lsn=9, ttl_s=3600)
        assert head.generation == 5
        assert head.manifest.snapshots == (snapshot,)

    def test_taken_out_before_it_was_corrected_it_is_added_anew(self) -> None:
        there = ManualClock()
        here = ManualClock(there.now_us() - 7200 * 1_000_000)
        inner = MemoryStore(clock=there)

        class Overtaken(WrapperStore):
            puts = 0

            def put_if_absent(self, key: str, data: Buffer) -> None:
                self.puts += 1
                if self.puts == 3:  # after the namespace and the snapshot: its correction
                    actor(inner, there, "collector").publish(
                        lambda head: (
                            expire_snapshots(head.manifest, there.now_us()) if head else None
                        )
                    )
                super().put_if_absent(key, data)

        chain = self.chain(here, there, Overtaken(inner))
        head, snapshot = create_snapshot(chain, id="s", lsn=9, ttl_s=3600)
        assert (head.generation, snapshot.generation) == (4, 4)
        assert abs(snapshot.expires_at_us - head.published_at_us - HOUR_US) < 1_000_000

    def test_renewing_goes_by_the_stores_clock_too(self) -> None:
        there = ManualClock()
        here = ManualClock(there.now_us() - 7200 * 1_000_000)
        store = MemoryStore(clock=there)
        create_snapshot(self.chain(here, there, store), id="s", lsn=9, ttl_s=60)
        late = actor(store, here, "late")
        there.advance(30)
        head, snapshot = renew(late, id="s", ttl_s=3600)
        assert snapshot.expires_at_us == head.published_at_us + HOUR_US
        assert snapshot.generation == 2
        head, snapshot = renew(late, id="s", ttl_s=None)
        assert snapshot.expires_at_us == 0

    def test_renewing_what_is_gone(self) -> None:
        clock = ManualClock()
        chain = self.chain(clock, clock)
        with pytest.raises(NotFoundError, match="'s'"):
            renew(chain, id="s", ttl_s=60)
        create_snapshot(chain, id="s", lsn=9, ttl_s=60)
        clock.advance(61)
        assert renew(chain, id="s", ttl_s=60)[1].generation == 2  # nobody has taken it out
        clock.advance(61)
        chain.publish(
            lambda head: expire_snapshots(head.manifest, clock.now_us()) if head else None
        )
        with pytest.raises(NotFoundError, match="expired"):
            renew(chain, id="s", ttl_s=60)

    def test_of_nothing(self) -> None:
        clock = ManualClock()
        with pytest.raises(NotFoundError, match="there is no namespace 'products'"):
            create_snapshot(actor(MemoryStore(), clock), id="s", lsn=0, ttl_s=60)

    @pytest.mark.parametrize("ttl", [-1.0, float("nan"), float("inf"), 1e12])
    def test_a_bad_ttl(self, ttl: float) -> None:
        clock = ManualClock()
        with pytest.raises(InvalidInputError, match="ttl"):
            create_snapshot(self.chain(clock, clock), id="s", lsn=0, ttl_s=ttl)
