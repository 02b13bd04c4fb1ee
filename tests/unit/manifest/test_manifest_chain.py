"""The manifest chain: one winner for each generation, and nothing counts that nobody will read."""

from __future__ import annotations

import itertools
import random
import threading

import pytest
from msgspec.structs import replace

from reef.errors import (
    AccessDeniedError,
    FencedError,
    InvalidInputError,
    InvariantError,
    NotFoundError,
    NotWrittenError,
    OutcomeUnknownError,
)
from reef.format import Manifest
from reef.manifest import Head, ManifestChain, release_snapshot
from reef.store import MemoryStore
from reef.testing import Fault, FaultKind, FaultyStore, ManualClock
from tests.support.engine.chains import (
    GRACE_S,
    NAMESPACE,
    SETTINGS,
    ChainWorld,
    Intruder,
    key,
    opened,
    snapshotted,
)


class TestPublishing:
    def test_nothing_is_there_before_the_first(self, world: ChainWorld) -> None:
        chain = world.chain()
        assert chain.load() is None
        assert chain.head is None
        assert chain.last_contact is None
        assert dict(world.store.counts.requests) == {"list": 2}  # manifests, then anything else

    def test_the_first_generation(self, world: ChainWorld) -> None:
        chain = world.chain("writer-1")
        head = chain.publish(opened)
        assert head.manifest == world.stored(1)
        assert (head.generation, head.manifest.writer_epoch) == (1, 1)
        assert (head.manifest.author, head.manifest.predecessor_checksum) == ("writer-1", None)
        assert head.manifest.nonce != "0" * 32
        assert head.published_at_us == world.inner.head(key(1)).last_modified_us
        assert chain.head == head

    def test_the_next_ones_name_their_predecessors(self, world: ChainWorld) -> None:
        chain = world.chain()
        heads = [chain.publish(opened) for _ in range(4)]
        assert [head.generation for head in heads] == [1, 2, 3, 4]
        for before, after in itertools.pairwise(heads):
            assert after.manifest.predecessor_checksum == before.checksum
        assert len({head.manifest.nonce for head in heads}) == 4

    def test_a_publish_on_a_known_head_is_one_put_and_one_list(self, world: ChainWorld) -> None:
        chain = world.chain()
        chain.publish(opened)
        world.store.reset()
        chain.publish(opened)
        assert dict(world.store.counts.requests) == {"put_if_absent": 1, "list": 1}

    def test_a_load_is_one_list_and_one_get_and_a_known_head_is_not_fetched_again(
        self, world: ChainWorld
    ) -> None:
        world.grow(3)
        chain = world.chain()
        chain.load()
        assert dict(world.store.reset().requests) == {"list": 1, "get": 1}
        chain.load()
        assert dict(world.store.reset().requests) == {"list": 1}

    def test_what_is_recorded_of_the_new_generation_in_the_first_is_dated_to_it(
        self, world: ChainWorld
    ) -> None:
        head = world.chain().publish(snapshotted("s"))
        assert [s.generation for s in head.manifest.snapshots] == [1]

    def test_interleaved_chains_build_on_each_other(self, world: ChainWorld) -> None:
        a, b = world.chain("a"), world.chain("b")
        epochs = [chain.publish(opened).manifest.writer_epoch for chain in (a, b, a, a, b, b, a)]
        assert epochs == [1, 2, 3, 4, 5, 6, 7]
        assert world.numbers() == [1, 2, 3, 4, 5, 6, 7]

    def test_a_publish_overtaken_after_its_read_starts_over_on_the_new_head(
        self, world: ChainWorld
    ) -> None:
        a, b = world.chain("a"), world.chain("b")
        a.publish(opened)
        seen: list[int] = []

        def change(head: Head | None) -> Manifest:
            assert head is not None
            seen.append(head.generation)
            if len(seen) < 3:
                b.publish(opened)
            return opened(head)

        assert a.publish(change).generation == 4
        assert seen == [1, 2, 3]
        assert world.stored(4).writer_epoch == 4

    def test_two_openers_with_the_same_words_never_both_believe_that_they_won(
        self, world: ChainWorld
    ) -> None:
        """Same author, same time, same content: only the nonce tells whose object it is."""
        a = world.chain("writer")
        b = world.chain("writer")
        b._rng = random.Random("another seed")
        heads: list[Head] = []

        def change(head: Head | None) -> Manifest:
            if not heads:
                heads.append(b.publish(opened))
            return opened(head)

        heads.append(a.publish(change))
        assert [head.generation for head in heads] == [1, 2]
        assert [head.manifest.writer_epoch for head in heads] == [1, 2]

    def test_no_change_is_no_publish(self, world: ChainWorld) -> None:
        chain = world.chain()
        head = chain.publish(opened)
        world.store.reset()
        assert chain.publish(lambda head: None) == head
        assert world.store.counts.total == 0

    def test_no_change_of_nothing_has_no_head_to_return(self, world: ChainWorld) -> None:
        with pytest.raises(NotFoundError, match="products"):
            world.chain().publish(lambda head: None)

    def test_the_author_cannot_be_talked_into_another_number(self, world: ChainWorld) -> None:
        chain = world.chain()
        chain.publish(opened)
        head = chain.publish(
            lambda head: replace(opened(head), generation=77, repaired_from=3, author="else")
        )
        assert (head.generation, head.manifest.repaired_from) == (2, None)
        assert head.manifest.author == "writer"

    def test_a_change_that_breaks_a_rule_is_never_written(self, world: ChainWorld) -> None:
        chain = world.chain()
        chain.publish(opened)
        with pytest.raises(InvariantError, match="writer_epoch"):
            chain.publish(lambda head: replace(opened(head), writer_epoch=0))
        with pytest.raises(InvariantError, match="wal_floor at most wal_last_seen"):
            chain.publish(lambda head: replace(opened(head), wal_floor=9))
        assert world.numbers() == [1]

    def test_a_hundred_lost_races_are_given_up(self, world: ChainWorld) -> None:
        a, b = world.chain("a"), world.chain("b")

        def change(head: Head | None) -> Manifest:
            b.publish(opened)
            return opened(head)

        with pytest.raises(NotWrittenError, match="100 others"):
            a.publish(change)
        assert world.stored(100).author == "b"
        assert world.numbers() == list(range(1, 101))
        assert len(world.clock.sleeps) == 99
        assert all(pause <= SETTINGS.cas_backoff[1] for pause in world.clock.sleeps)
        assert a.publish(opened).generation == 101

    def test_an_error_of_a_change_on_an_old_head_is_asked_again_on_the_newest(
        self, world: ChainWorld
    ) -> None:
        a, b = world.chain("a"), world.chain("b")
        a.publish(opened)
        b.publish(snapshotted("s"))

        def release(head: Head | None) -> Manifest:
            assert head is not None
            return release_snapshot(head.manifest, "s")

        assert a.publish(release).generation == 3
        with pytest.raises(NotFoundError, match="no snapshot 's'"):
            a.publish(release)
        assert world.numbers() == [1, 2, 3]

    def test_an_error_of_a_change_comes_out_and_the_chain_stays_usable(
        self, world: ChainWorld
    ) -> None:
        chain = world.chain()
        chain.publish(opened)

        def change(head: Head | None) -> Manifest:
            raise FencedError("no")

        with pytest.raises(FencedError):
            chain.publish(change)
        assert chain.publish(opened).generation == 2

    def test_a_bad_name_is_refused(self, world: ChainWorld) -> None:
        with pytest.raises(InvalidInputError):
            ManifestChain(
                world.store,
                "../up",
                author="a",
                settings=SETTINGS,
                clock=world.clock,
                rng=random.Random(1),
            )


class TestLostReplies:
    @pytest.mark.parametrize(
        "kind",
        [
            "reply_lost",
            "error_after",
            "timeout_after",
            "false_conflict",
            "conflict",
            "error_before",
            "timeout_before",
        ],
    )
    def test_at_every_put_of_a_run(self, world: ChainWorld, kind: FaultKind) -> None:
        chain = world.chain()
        for generation in range(1, 6):
            world.faults.arm(Fault(kind, on="put_if_absent"))
            assert chain.publish(snapshotted(f"s{generation}")).generation == generation
        assert len(world.faults.fired) == 5
        assert [s.id for s in world.stored(5).snapshots] == [f"s{n}" for n in range(1, 6)]
        assert world.numbers() == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize("kind", ["reply_lost", "timeout_before"])
    def test_an_unknown_outcome_passes_through_and_the_next_publish_looks_first(
        self, world: ChainWorld, kind: FaultKind
    ) -> None:
        chain = world.chain()
        chain.publish(opened)
        world.faults.arm(Fault(kind, on="put_if_absent"), Fault("error_before", on="get"))
        with pytest.raises(OutcomeUnknownError, match="00000000000000000002"):
            chain.publish(snapshotted("s"))
        assert chain.head is not None
        assert chain.head.generation == 1
        world.store.reset()
        head = chain.publish(opened)
        landed = kind == "reply_lost"
        assert head.generation == (3 if landed else 2)
        assert [s.id for s in head.manifest.snapshots] == (["s"] if landed else [])
        # It asked before it sent: no PUT was refused.
        assert world.store.counts.requests["put_if_absent"] == 1

    def test_a_write_that_lands_late_is_a_generation_like_any_other(
        self, world: ChainWorld
    ) -> None:
        chain = world.chain()
        chain.publish(opened)
        world.faults.arm(Fault("lands_late", on="put_if_absent"), Fault("error_before", on="get"))
        with pytest.raises(OutcomeUnknownError):
            chain.publish(snapshotted("late"))

        def change(head: Head | None) -> Manifest:
            world.faults.land()
            return opened(head)

        head = chain.publish(change)
        assert head.generation == 3
        assert [s.id for s in head.manifest.snapshots] == ["late"]

    @pytest.mark.parametrize("operation", ["list", "get"])
    def test_a_generation_that_cannot_be_confirmed_is_unknown(
        self, world: ChainWorld, operation: str
    ) -> None:
        intruder = Intruder(world.faults)
        chain = world.chain("a", store=intruder)
        chain.publish(opened)

        def change(head: Head | None) -> Manifest:
            intruder.before("list", lambda: world.grow(1))  # so that there is a newer head to GET
            world.faults.arm(Fault("error_before", on=operation))  # type: ignore[arg-type]
            return snapshotted("s")(head)

        with pytest.raises(OutcomeUnknownError, match="could not be read after it"):
            chain.publish(change)
        head = chain.publish(opened)
        assert head.generation == 4
        assert [s.id for s in head.manifest.snapshots] == ["s"]

    def test_a_definite_refusal_comes_out_as_it_is(self, world: ChainWorld) -> None:
        chain = world.chain()
        chain.publish(opened)
        world.faults.arm(Fault("denied", on="put_if_absent"))
        with pytest.raises(AccessDeniedError):
            chain.publish(opened)
        assert chain.publish(opened).generation == 2

    def test_written_but_not_listed_is_unknown(self, world: ChainWorld) -> None:
        chain = world.chain()
        chain.publish(opened)
        world.faults.arm(Fault("missing_entry", on="list", key=key(2)))
        with pytest.raises(OutcomeUnknownError, match="LIST does not show it"):
            chain.publish(opened)
        assert chain.publish(opened).generation == 3

    def test_written_but_not_listed_before_others_is_unknown(self, world: ChainWorld) -> None:
        intruder = Intruder(world.faults)
        chain = world.chain("a", store=intruder)
        chain.publish(opened)

        def change(head: Head | None) -> Manifest:
            world.faults.arm(Fault("missing_entry", on="list", key=key(2)))
            intruder.before("list", lambda: world.grow(1))
            return opened(head)

        with pytest.raises(OutcomeUnknownError, match="LIST does not show it"):
            chain.publish(change)


def slow_chain(world: ChainWorld) -> tuple[ManifestChain, Intruder]:
    """Return a chain that knows generation 1, and what comes between its requests."""
    world.grow(1)
    intruder = Intruder(world.store)
    chain = world.chain("slow", store=intruder)
    chain.load()
    return chain, intruder


class TestSleepers:
    """Put-if-absent forgets deleted names: who slept through a collection has published nothing."""

    def test_a_collected_generation_that_is_created_again_does_not_count(
        self, world: ChainWorld, caplog: pytest.LogCaptureFixture
    ) -> None:
        chain = world.chain("sleeper")
        chain.publish(opened)
        built_on: list[int] = []

        def change(head: Head | None) -> Manifest:
            assert head is not None
            built_on.append(head.generation)
            if len(built_on) == 1:
                world.grow(10)
                world.collect(boundary=9)
            return snapshotted("mine")(head)

        head = chain.publish(change)
        assert built_on == [1, 12]
        assert head.generation == 13
        assert world.stored(13).writer_epoch == 11
        assert [s.id for s in world.stored(13).snapshots] == ["mine"]
        # The one that did not count lies there until it is collected, and nobody takes it for one.
        assert world.numbers() == [2, 9, 10, 11, 12, 13]
        assert "does not count" in caplog.text
        with pytest.raises(NotFoundError):
            chain.at(2)

    def test_so_it_is_with_the_very_first_generation(self, world: ChainWorld) -> None:
        chain = world.chain("sleeper")
        heads: list[Head | None] = []

        def change(head: Head | None) -> Manifest:
            heads.append(head)
            if len(heads) == 1:
                world.grow(10)
                world.collect(boundary=9)
            return opened(head)

        assert chain.publish(change).generation == 12
        assert heads[0] is None
        assert world.stored(12).writer_epoch == 11

    def test_at_the_boundary_it_counts(self, world: ChainWorld) -> None:
        chain = world.chain("slow")
        chain.publish(opened)
        intruder = Intruder(world.store)
        slow = world.chain("slow", store=intruder)
        slow.load()

        def change(head: Head | None) -> Manifest:
            def meanwhile() -> None:
                world.grow(3)
                world.collect(boundary=2)

            intruder.before("list", meanwhile)  # after the PUT, before the head is read
            return snapshotted("mine")(head)

        head = slow.publish(change)
        assert head.generation == 2
        assert slow.head is not None
        assert slow.head.generation == 6
        assert [s.id for s in world.stored(6).snapshots] == ["mine"]

    def test_a_publish_collected_before_it_was_confirmed_is_unknown(
        self, world: ChainWorld
    ) -> None:
        """It was published, it may have been built upon, and it is gone: neither yes nor no."""
        chain, intruder = slow_chain(world)

        def change(head: Head | None) -> Manifest:
            def meanwhile() -> None:
                world.clock.advance(GRACE_S)
                world.grow(10)
                world.collect(boundary=9)

            intruder.before("list", meanwhile)
            return snapshotted("mine")(head)

        with pytest.raises(OutcomeUnknownError, match="boundary has passed"):
            chain.publish(change)
        assert [s.id for s in world.stored(13).snapshots] == ["mine"]
        assert chain.publish(opened).generation == 14

    def test_refused_and_collected_since_is_unknown(self, world: ChainWorld) -> None:
        """The name was taken when the PUT came, and free when it was read back."""
        chain, intruder = slow_chain(world)

        def change(head: Head | None) -> Manifest:
            world.grow(10)
            intruder.before("get", lambda: world.collect(boundary=9))
            return opened(head)

        with pytest.raises(OutcomeUnknownError, match="collected since"):
            chain.publish(change)
        assert chain.publish(opened).generation == 13

    def test_out_of_touch_it_looks_before_it_writes(self, world: ChainWorld) -> None:
        chain = world.chain("sleeper")
        chain.publish(opened)
        world.grow(10)
        world.collect(boundary=9)
        world.clock.advance(GRACE_S / 2 + 1)
        assert chain.is_out_of_touch
        world.store.reset()
        assert chain.publish(opened).generation == 13
        assert world.store.counts.requests["put_if_absent"] == 1
        assert world.numbers() == [9, 10, 11, 12, 13]

    def test_an_unreadable_newer_head_leaves_it_unknown(self, world: ChainWorld) -> None:
        """It may hold a boundary above what was just written."""
        chain, intruder = slow_chain(world)

        def change(head: Head | None) -> Manifest:
            def meanwhile() -> None:
                world.grow(2)
                world.damage(4)

            intruder.before("list", meanwhile)
            return opened(head)

        with pytest.raises(OutcomeUnknownError, match="generation 3 is the newest"):
            chain.publish(change)


class TestTime:
    def test_the_stores_time_is_known_from_the_own_put_and_carried_forward(self) -> None:
        there, here = ManualClock(1_800_000_000_000_000), ManualClock()
        store = MemoryStore(clock=there)
        chain = ManifestChain(
            store, NAMESPACE, author="a", settings=SETTINGS, clock=here, rng=random.Random(1)
        )
        assert chain.now_us is None
        assert chain.estimated_now_us == here.now_us()
        chain.publish(opened)
        assert chain.now_us == there.now_us() == chain.estimated_now_us
        here.advance(2.5)
        assert chain.now_us == there.now_us() + 2_500_000
        there.advance(100)
        chain.publish(opened)
        assert chain.now_us == there.now_us()

    def test_it_is_never_ahead_of_the_store(self) -> None:
        """What the PUT took does not count as time that has passed since."""
        clock = ManualClock()
        faults = FaultyStore(MemoryStore(clock=clock), clock=clock)
        chain = ManifestChain(
            faults, NAMESPACE, author="a", settings=SETTINGS, clock=clock, rng=random.Random(1)
        )
        faults.arm(Fault("stall", on="put_if_absent", seconds=20.0))
        faults.arm(Fault("stall", on="list", nth=2, seconds=30.0))
        chain.publish(opened)
        assert chain.now_us == clock.now_us()

    def test_reading_tells_no_time(self, world: ChainWorld) -> None:
        world.grow(1)
        chain = world.chain()
        chain.load()
        assert chain.now_us is None


class TestThreads:
    def test_threads_share_a_chain(self, world: ChainWorld) -> None:
        chain = world.chain()
        chain.publish(opened)
        errors: list[Exception] = []

        def work(name: str) -> None:
            try:
                for i in range(10):
                    chain.publish(snapshotted(f"{name}-{i}"))
            except Exception as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert chain.head is not None
        assert chain.head.generation == 41
        assert len(world.stored(41).snapshots) == 40

    def test_ten_openers_at_once_get_ten_epochs(self, world: ChainWorld) -> None:
        chains = [world.chain(f"writer-{n}") for n in range(10)]
        start = threading.Barrier(10)
        epochs: list[int] = []

        def work(chain: ManifestChain) -> None:
            start.wait()
            epochs.append(chain.publish(opened).manifest.writer_epoch)

        threads = [threading.Thread(target=work, args=(chain,)) for chain in chains]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(epochs) == list(range(1, 11))
        assert world.numbers() == list(range(1, 11))
